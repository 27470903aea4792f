"""Where transformers looks whether a mask is all ones, there is a plan for either kind of mask."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
import torch

import tightfit
from tests.tightfit.conftest import SETTINGS
from tightfit import ModelError, OffloadOptions, PlanMismatch
from tightfit.api.stage_runner import StageRunner
from tightfit.integrations import plan_trainer
from tightfit.stages.validate import scenarios

transformers: Any = pytest.importorskip("transformers")

pytestmark = pytest.mark.usefixtures("loose_bounds", "traced_once")

IDS = torch.randint(50, (2, 8), generator=torch.Generator().manual_seed(0))
ONES = torch.ones_like(IDS)
PADDED = torch.tensor([[1] * 8, [1] * 5 + [0] * 3])
LEFT = PADDED.flip(1)
SIZES: dict[str, Any] = {
    "vocab_size": 50, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1,
    "num_attention_heads": 4, "num_key_value_heads": 2, "use_cache": False,
}  # fmt: skip


def grouped(name: str = "Llama") -> Any:
    """A model whose heads share keys and values."""
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(**SIZES)
    return getattr(transformers, f"{name}ForCausalLM")(config).train()


def plan(store: Path, model: Any, *masks: torch.Tensor, **options: Any) -> Any:
    samples = [((), {"input_ids": IDS, "attention_mask": mask, "labels": IDS}) for mask in masks]
    settings = {**SETTINGS, "store": store, "strategy": "keep_all", "progress": False, **options}
    return tightfit.plan(model, samples=samples, loss=lambda output: output.loss, **settings)


def step(model: Any, mask: torch.Tensor) -> list[torch.Tensor]:
    """The outputs and the gradients of a step on other tokens than the sample's."""
    model.zero_grad()
    ids = IDS.flip(0) * 2 % 50
    output = model(input_ids=ids, attention_mask=mask, labels=ids)
    output.loss.backward()
    return [output.loss, output.logits, *(weight.grad.clone() for weight in model.parameters())]


def equal(model: Any, fitted: Any, mask: torch.Tensor) -> bool:
    return all(map(torch.equal, step(model, mask), step(fitted, mask)))


@pytest.mark.parametrize(
    ("name", "mask", "options"),
    [
        ("Llama", ONES, {"strategy": "rotor", "budget": "60%"}),
        ("Qwen2", ONES, {}),
        ("Llama", PADDED, {}),
    ],
)
def test_any_mask_has_eagers_bits(
    store: Path, name: str, mask: torch.Tensor, options: dict[str, Any]
) -> None:
    model = grouped(name)
    fitted, made = plan(store, model, mask, **options)
    for other in (ONES, PADDED, ONES.clone(), LEFT, PADDED):
        assert equal(model, fitted, other)
    assert not all(map(torch.equal, step(model, ONES), step(model, ONES.bool()[:, None, None])))
    assert len(made.plans) == 2 and made.plans[0] is made
    assert len({each.budget_total for each in made.plans}) == 1
    takes = "holds only ones" if mask is ONES else "does not hold only ones"
    assert f"it takes calls in which attention_mask {takes}" in made.message
    again = pickle.loads(pickle.dumps(fitted))
    assert equal(again, fitted, PADDED) and equal(again, fitted, ONES)


def test_plans_by_package_refuse_the_other_kind(store: Path) -> None:
    model = grouped()
    fitted, made = plan(store, model, ONES)
    with pytest.raises(PlanMismatch, match="no plan takes the call"):
        fitted(input_ids=IDS[:1], attention_mask=ONES[:1], labels=IDS[:1])
    resting, general = (tightfit.load(each.package, model) for each in made.plans)
    assert equal(model, resting, ONES) and equal(model, general, PADDED)
    with pytest.raises(PlanMismatch, match="attention_mask holds more than ones"):
        step(resting, PADDED)
    with pytest.raises(PlanMismatch, match="attention_mask holds nothing but ones"):
        step(general, ONES)
    both = tightfit.load([each.package for each in made.plans], model)
    assert equal(model, both, ONES) and equal(model, both, PADDED)


def test_a_model_that_looks_at_no_mask_has_one_plan(store: Path) -> None:
    class Weighted(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(4, 4)

        def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            return self.layer(x) * mask

    x, mask = torch.randn(3, 4), torch.ones(3, 4, dtype=torch.long)
    samples: Any = [((x, mask), {}), ((x, mask.tril()), {})]
    settings = {**SETTINGS, "budget": "100%", "progress": False}
    _, made = tightfit.plan(Weighted(), samples=samples, store=store, **settings)
    assert len(made.plans) == 1 and "only ones" not in made.message


def test_with_false_the_cause_is_told_before_the_search(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def search(*_: object, **__: object) -> Any:
        raise AssertionError("the search has begun")

    monkeypatch.setattr(StageRunner, "frontier", search)
    said = r"where attention_mask holds only ones .* shorter way: plan with assume_all_ones_masks"
    with pytest.raises(ModelError, match=said) as refused:
        plan(store / "other", grouped(), ONES, assume_all_ones_masks=False)
    assert scenarios.UNKNOWN_CAUSE not in str(refused.value)


def test_a_plan_with_an_optimizer_is_for_the_samples_masks(store: Path) -> None:
    model, twin = grouped(), grouped()
    adam = torch.optim.AdamW(model.parameters(), lr=1e-2)
    fitted, made = plan(
        store,
        model,
        ONES,
        optimizer=adam,
        offload=OffloadOptions(store),
        budget="100%",
        strategy="rotor",
        check=False,
    )
    assert "holds only ones" in made.message
    other = torch.optim.AdamW(twin.parameters(), lr=1e-2)
    step(twin, ONES)
    other.step()
    ids = IDS.flip(0) * 2 % 50
    fitted(input_ids=ids, attention_mask=ONES, labels=ids).loss.backward()
    assert all(map(torch.equal, model.parameters(), twin.parameters()))
    with pytest.raises(PlanMismatch, match="attention_mask holds more than ones"):
        fitted(input_ids=ids, attention_mask=PADDED, labels=ids)


class Texts(torch.utils.data.Dataset[dict[str, Any]]):
    """Rows of tokens, two of full length ahead of shorter ones, which a collator pads."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"row": IDS[index % 2].roll(index), "length": 8 if index < 2 else 8 - index % 4}


def padded(rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    ids = torch.stack([each["row"] for each in rows])
    lengths = torch.tensor([each["length"] for each in rows])
    mask = (torch.arange(8) < lengths[:, None]).long()
    return {"input_ids": ids * mask, "attention_mask": mask, "labels": ids.where(mask > 0, -100)}


def trained(folder: Path, store: Path, planned: bool) -> list[torch.Tensor]:
    class InOrder(transformers.Trainer):
        def _get_train_sampler(self, *_: Any) -> Any:
            return torch.utils.data.SequentialSampler(self.train_dataset)

    model = grouped()
    arguments = transformers.TrainingArguments(
        output_dir=str(folder), per_device_train_batch_size=2, num_train_epochs=1, use_cpu=True,
        report_to=[], remove_unused_columns=False, save_strategy="no",
        disable_tqdm=True, logging_strategy="no",
    )  # fmt: skip
    trainer = InOrder(model, arguments, data_collator=padded, train_dataset=Texts())
    if planned:
        settings = {**SETTINGS, "strategy": "keep_all", "progress": False, "store": store}
        assert len(plan_trainer(trainer, **settings).plans) == 2
    trainer.train()
    return [weight.detach() for weight in model.parameters()]


def test_the_trainer_trains_padded_batches_behind_one_of_ones(tmp_path: Path, store: Path) -> None:
    pytest.importorskip("accelerate")
    eager = trained(tmp_path / "eager", store, False)
    assert all(map(torch.equal, eager, trained(tmp_path / "planned", store, True)))
