"""Callbacks that plan in the first training call: transformers' Trainer, trl's trainers, Lightning,
and loops of one's own."""

from __future__ import annotations

import copy
import pickle
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import tightfit
from tests.tightfit.conftest import SETTINGS
from tests.tightfit.test_integrations import TOKENS, Texts, equal, gpt2, trainer_of, weights
from tightfit.integrations import plan_at_first_call

pytest.importorskip("accelerate")

from transformers import Trainer


def fit_in(store: Path, **options: Any) -> Any:
    settings = {"budget": "90%", "store": store, "progress": False, **SETTINGS, **options}
    return tightfit.integrations.Fit(**settings)


pytestmark = pytest.mark.usefixtures("brief_search", "loose_bounds")

WAYS: dict[str, dict[str, Any]] = {
    "smaller last batch": {"count": 5, "max_steps": 6},
    "bf16": {"bf16": True},
    "accumulation": {"gradient_accumulation_steps": 2},
    "label smoothing": {"label_smoothing_factor": 0.1},
}


@pytest.mark.sample(only=["bf16"])
@pytest.mark.parametrize("way", WAYS)
def test_a_trainer_trains_as_without_a_plan(way: str, store: Path, tmp_path: Path) -> None:
    alone = trainer_of(gpt2(), tmp_path / "alone", **WAYS[way])
    expected = alone.train()
    fit = fit_in(store)
    trainer = trainer_of(gpt2(), tmp_path / "planned", callbacks=[fit], **WAYS[way])
    model = trainer.model
    assert not fit.plan
    found = trainer.train()
    assert fit.plan is not None and fit.plan.feasible and trainer.model is model
    assert found.training_loss == expected.training_loss
    assert equal(weights(trainer), weights(alone))
    if way == "smaller last batch":
        assert len(fit.plan.replans) == 2  # the smaller batch, with a mask of ones and with others


class LogitsLoss(Trainer):
    """Computes a loss of its own from the logits."""

    def compute_loss(self, model: Any, inputs: Any, *_: Any, **given: Any) -> Any:
        outputs = model(**inputs)
        return outputs.loss + outputs.logits.square().mean()


def test_a_trainer_with_a_loss_of_its_own(store: Path, tmp_path: Path) -> None:
    found = []
    for callbacks in ([], [fit_in(store, assume_all_ones_masks=True)]):
        trainer = trainer_of(gpt2(), tmp_path, callbacks=callbacks, kind=LogitsLoss)
        trainer.train()
        found.append(weights(trainer))
    assert equal(*found) and callbacks[0].plan.feasible


def test_a_callback_that_no_trainer_calls() -> None:
    with pytest.raises(tightfit.ConfigError, match="no transformers Trainer calls it"):
        fit_in(Path()).on_train_begin(None, None, None, gpt2())


def test_a_callback_that_is_added_later(store: Path, tmp_path: Path) -> None:
    trainer = trainer_of(gpt2(), tmp_path, max_steps=1)
    fit = fit_in(store)
    trainer.add_callback(fit)
    trainer.train()
    assert fit.plan.feasible


def test_what_does_not_go_with_a_callback_is_told_when_the_trainer_is_made(tmp_path: Path) -> None:
    with pytest.raises(tightfit.ConfigError, match=r"torch_compile=True.*: leave it out"):
        trainer_of(gpt2(), tmp_path, callbacks=[fit_in(tmp_path)], torch_compile=True)
    with pytest.raises(tightfit.ConfigError, match="Fit: optimizer: the optimizer of the loop"):
        fit_in(tmp_path, optimizer=torch.optim.SGD([torch.ones(1, requires_grad=True)]))
    with pytest.raises(tightfit.ConfigError, match="Fit: samples: the sample is the first"):
        fit_in(tmp_path, samples=[])


@pytest.mark.sample(only=["SFT"])
@pytest.mark.parametrize("kind", ["SFT", "DPO"])
def test_trainers_of_trl_with_their_defaults(kind: str, store: Path, tmp_path: Path) -> None:
    trl = pytest.importorskip("trl")
    datasets = pytest.importorskip("datasets")
    texts = [" ".join(f"w{token}" for token in row) for row in Texts(6).rows]
    columns = {"text": texts}
    if kind == "DPO":
        columns = {"prompt": texts, "chosen": texts[1:] + texts[:1], "rejected": texts}
    data = datasets.Dataset.from_dict(columns)

    def trained(name: str, callbacks: list[Any]) -> Any:
        arguments = getattr(trl, f"{kind}Config")(
            output_dir=str(tmp_path / name),
            per_device_train_batch_size=2,
            max_steps=2,
            report_to=[],
            use_cpu=True,
            disable_tqdm=True,
            save_strategy="no",
            max_length=TOKENS,
        )
        trainer = getattr(trl, f"{kind}Trainer")(
            gpt2(),
            **({"ref_model": gpt2()} if kind == "DPO" else {}),
            args=arguments,
            train_dataset=data,
            processing_class=tokenizer(),
            callbacks=callbacks,
        )
        trainer.train()
        return trainer

    fit = fit_in(store, budget="min")
    assert equal(weights(trained("planned", [fit])), weights(trained("alone", [])))
    assert fit.plan.feasible


def tokenizer() -> Any:
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(WordLevel({f"w{number}": number for number in range(50)}, unk_token="w0"))
    names: dict[str, Any] = {"unk_token": "w0", "pad_token": "w1", "eos_token": "w2"}
    return PreTrainedTokenizerFast(tokenizer_object=words, **names)


class Net(nn.Sequential):
    def __init__(self) -> None:
        torch.manual_seed(0)
        layers = (nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Dropout(0.1)) for _ in range(3))
        super().__init__(*layers)


def test_lightning(store: Path, tmp_path: Path) -> None:
    lightning = pytest.importorskip("lightning")

    class Task(lightning.LightningModule):  # type: ignore[name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.net = Net()

        def training_step(self, batch: Any, index: int) -> Any:
            return self.net(batch[0]).square().mean()

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    drawn = torch.randn(10, 8, generator=torch.Generator().manual_seed(1))
    data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(drawn), batch_size=4)
    quiet: dict[str, Any] = {"logger": False, "enable_checkpointing": False, "accelerator": "cpu"}
    quiet |= {"enable_progress_bar": False, "enable_model_summary": False}

    def trained(callbacks: list[Any]) -> dict[str, torch.Tensor]:
        task = Task()
        torch.manual_seed(4)
        trainer = lightning.Trainer(
            max_epochs=2, precision="bf16-mixed", callbacks=callbacks, **quiet
        )
        trainer.fit(task, data)
        return dict(task.state_dict())

    options = {"budget": "90%", "store": store, "progress": False, **SETTINGS}
    fit = tightfit.integrations.LightningFit(**options)
    assert equal(trained([fit]), trained([]))
    assert fit.plan is not None and fit.plan.feasible and len(fit.plan.replans) == 1
    with pytest.raises(tightfit.ConfigError, match="no submodule 'model', but net"):
        trained([tightfit.integrations.LightningFit(module="model", **options)])
    two = lightning.LightningModule()
    two.generator, two.critic = Net(), Net()
    with pytest.raises(tightfit.ConfigError, match=r'LightningFit for each.*module="generator"'):
        tightfit.integrations.LightningFit().setup(SimpleNamespace(strategy=None), two, "fit")  # type: ignore[arg-type]


def test_a_loop_of_ones_own_plans_in_its_first_training_call(store: Path) -> None:
    sample, results = torch.randn(4, 8), []
    for planned in (False, True):
        model = Net()
        if planned:
            fit = plan_at_first_call(model, budget="90%", store=store, progress=False, **SETTINGS)
            assert type(copy.deepcopy(model)) is Net
            assert type(pickle.loads(pickle.dumps(model))) is Net
            copy.copy(model).eval()
            assert model.training
            setattr(model, "number_of_hooks", 2)  # noqa: B010
        called: list[Any] = []
        model.register_forward_hook(lambda *given, seen=called: seen.append(given))
        model.eval()
        model(sample)
        model.train()
        with torch.no_grad():
            model(sample)
        assert not planned or fit.plan is None
        torch.manual_seed(1)
        for _ in range(2):
            model(sample).square().mean().backward()
        assert len(called) == 4
        results.append([parameter.grad for parameter in model.parameters()])
    assert fit.plan is not None and fit.plan.feasible
    assert all(torch.equal(one, other) for one, other in zip(*results, strict=True))
    again = plan_at_first_call(model, budget="95%", store=store, progress=False, **SETTINGS)
    with pytest.raises(tightfit.ConfigError, match="is planned already"):
        plan_at_first_call(model)
    model.zero_grad()
    torch.manual_seed(1)
    for _ in range(2):
        model(sample).square().mean().backward()
    assert again.plan is not None and again.plan.feasible
    for parameter, gradient in zip(model.parameters(), results[0], strict=True):
        assert torch.equal(parameter.grad, gradient)  # type: ignore[arg-type]


class Locked(nn.Linear):
    """A layer that cannot be pickled as it is, and says how it is."""

    def __init__(self) -> None:
        super().__init__(4, 4)
        self.lock = threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "lock"}


def test_a_model_says_how_it_is_copied() -> None:
    model = Locked()
    plan_at_first_call(model)
    assert type(copy.deepcopy(model)) is Locked and not hasattr(copy.deepcopy(model), "lock")


def test_a_forward_that_is_put_around_a_model_before_its_first_call(store: Path) -> None:
    """As accelerate's prepare and Lightning's strategies do."""
    torch.manual_seed(0)
    sample, results = torch.randn(4, 8), []
    for planned in (False, True):
        model = Net()
        if planned:
            fit = plan_at_first_call(model, budget="90%", store=store, progress=False, **SETTINGS)
        inner = model.forward
        model.forward = lambda *args, inner=inner: inner(*args) * 2  # type: ignore[method-assign]
        torch.manual_seed(1)
        for _ in range(2):
            model(sample).square().mean().backward()
        results.append([parameter.grad for parameter in model.parameters()])
    assert fit.plan is not None and not fit.plan.replans
    assert all(torch.equal(one, other) for one, other in zip(*results, strict=True))


def test_an_option_that_there_is_not() -> None:
    with pytest.raises(tightfit.ConfigError, match="budgett is no option, did you mean budget"):
        plan_at_first_call(Net(), budgett="8GiB")


def test_a_compiled_model_is_planned_in_its_first_call(store: Path) -> None:
    sample, model = torch.randn(4, 8), Net()
    fit = plan_at_first_call(model, budget="90%", store=store, progress=False, **SETTINGS)
    torch.compile(model, backend="eager")(sample).square().mean().backward()
    assert fit.plan is not None and fit.plan.feasible
