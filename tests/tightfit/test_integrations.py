"""The real Trainer of transformers, on tiny models with random weights."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.export import Dim

import tightfit
from tests.tightfit.conftest import SETTINGS
from tightfit.integrations import plan_trainer
from tightfit.integrations.padded_batches import find_padded_batches

pytest.importorskip("accelerate")

from transformers import (
    AutoModelForCausalLM,
    BertConfig,
    BertForSequenceClassification,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

TOKENS = 16


class Texts(torch.utils.data.Dataset[dict[str, Any]]):
    """Rows of random tokens; with labels that are the tokens, or one class a row."""

    def __init__(self, count: int, classes: int = 0) -> None:
        self.rows = torch.randint(50, (count, TOKENS), generator=torch.Generator().manual_seed(3))
        self.classes = classes

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        row = self.rows[index]
        mask = torch.ones_like(row)
        labels = row if not self.classes else row[0] % self.classes
        return {"input_ids": row, "attention_mask": mask, "labels": labels}


SIZES: dict[str, Any] = {"vocab_size": 50, "hidden_size": 32, "num_hidden_layers": 1}
HEADS: dict[str, Any] = {"num_attention_heads": 2, "intermediate_size": 64}


def gpt2() -> Any:
    torch.manual_seed(0)
    small: dict[str, Any] = {
        "vocab_size": 50,
        "n_positions": TOKENS,
        "n_embd": 32,
        "n_layer": 1,
        "n_head": 2,
    }
    return GPT2LMHeadModel(GPT2Config(**small))


def llama() -> Any:
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(**SIZES, **HEADS, max_position_embeddings=TOKENS))


def bert() -> Any:
    torch.manual_seed(0)
    named: dict[str, Any] = {"num_labels": 3}
    return BertForSequenceClassification(BertConfig(**SIZES, **HEADS, **named))


MODELS = {"gpt2": (gpt2, 0), "llama": (llama, 0), "bert": (bert, 3)}


def trainer_of(
    model: Any,
    folder: Path,
    classes: int = 0,
    count: int = 12,
    callbacks: Sequence[Any] = (),
    kind: type[Trainer] = Trainer,
    **given: Any,
) -> Any:
    settings: dict[str, Any] = {
        "output_dir": str(folder),
        "per_device_train_batch_size": 2,
        "max_steps": 3,
        "learning_rate": 1e-2,
        "report_to": [],
        "use_cpu": True,
        "disable_tqdm": True,
        "save_strategy": "no",
        "logging_strategy": "no",
        **given,
    }
    data = Texts(count, classes)
    arguments = TrainingArguments(**settings)
    return kind(model=model, args=arguments, train_dataset=data, callbacks=[*callbacks])


def weights(trainer: Any) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in trainer.model.state_dict().items()}


def equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def planned(trainer: Any, store: Path, **options: Any) -> tightfit.ChosenPlan:
    settings: dict[str, Any] = {
        "budget": "80%",
        "store": store,
        "progress": False,
        **SETTINGS,
        **options,
    }
    return plan_trainer(trainer, **settings)


@pytest.mark.sample(only=["gpt2"])
@pytest.mark.parametrize("name", MODELS)
def test_a_trainer_trains_as_without_a_plan(name: str, store: Path, tmp_path: Path) -> None:
    build, classes = MODELS[name]
    alone = trainer_of(build(), tmp_path / "alone", classes)
    expected = alone.train()
    trainer = trainer_of(build(), tmp_path / "planned", classes)
    made = planned(trainer, store)
    assert made.feasible and hasattr(type(trainer.model), "_tightfit_original")
    found = trainer.train()
    assert found.training_loss == expected.training_loss
    assert equal(weights(trainer), weights(alone))


WAYS: dict[str, dict[str, Any]] = {
    "accumulation": {"gradient_accumulation_steps": 2},
    "bf16": {"bf16": True},
    "clipping and weight decay": {"max_grad_norm": 0.1, "weight_decay": 0.1},
    "label smoothing": {"label_smoothing_factor": 0.1},
}


@pytest.mark.sample(only=["accumulation"])
@pytest.mark.parametrize("way", WAYS)
def test_ways_of_training(way: str, store: Path, tmp_path: Path) -> None:
    alone = trainer_of(gpt2(), tmp_path / "alone", **WAYS[way])
    alone.train()
    trainer = trainer_of(gpt2(), tmp_path / "planned", **WAYS[way])
    planned(trainer, store, budget="90%")
    calls = noted(trainer)
    trainer.train()
    assert calls and equal(weights(trainer), weights(alone))


@pytest.mark.parametrize(
    "way", [{"max_grad_norm": 0.1}, {"gradient_accumulation_steps": 2, "max_grad_norm": 0.0}, {}]
)
def test_an_optimizer_of_the_plan_is_put_into_the_trainer(
    way: dict[str, Any], store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tightfit.stages.profile.link_cache.CACHED_LINK_BYTES", 4 << 20)
    settings: dict[str, Any] = {
        "logging_strategy": "steps",
        "logging_steps": 1,
        "weight_decay": 0.1,
        **way,
    }
    alone = trainer_of(gpt2(), tmp_path / "alone", **settings)
    alone.train()
    trainer = trainer_of(gpt2(), tmp_path / "planned", **settings)
    made = planned(trainer, store, optimizer=trainer.create_optimizer(), budget="100%")
    assert trainer.optimizer is made.optimizer
    trainer.train()

    def logged(one: Any) -> list[Any]:
        names = ("loss", "grad_norm", "learning_rate")
        return [[line.get(name) for name in names] for line in one.state.log_history]

    assert logged(trainer) == logged(alone) and logged(alone)[0][1] > 0
    assert equal(weights(trainer), weights(alone))
    made.optimizer.close()


def noted(trainer: Any) -> list[bool]:
    """Whether the plan ran, in each step that has begun."""
    found: list[bool] = []

    class Noting(TrainerCallback):
        def on_step_end(self, *args: Any, **kwargs: Any) -> None:
            found.append(hasattr(type(kwargs["model"]), "_tightfit_original"))

    trainer.add_callback(Noting())
    return found


@pytest.mark.long
def test_a_last_batch_that_is_smaller(store: Path, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"count": 5, "max_steps": -1, "num_train_epochs": 2}
    alone = trainer_of(gpt2(), tmp_path / "alone", **settings)
    alone.train()
    trainer = trainer_of(gpt2(), tmp_path / "planned", **settings)
    plans = planned(trainer, store).plans
    assert len(plans) == 4, "for either shape one for masks of ones and one for others"
    trainer.train()
    assert equal(weights(trainer), weights(alone))


class Ragged(Texts):
    """Rows of several lengths."""

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {name: row[: 4 + index * 5 % 12] for name, row in super().__getitem__(index).items()}


def pad(rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    """A batch as long as its longest row, without loss for what is padded."""
    fill = {"input_ids": 0, "attention_mask": 0, "labels": -100}
    return {
        name: torch.nn.utils.rnn.pad_sequence([row[name] for row in rows], True, value)
        for name, value in fill.items()
    }


@pytest.mark.long
@pytest.mark.parametrize("given", [False, True])
def test_batches_of_all_lengths_have_one_plan(given: bool, store: Path, tmp_path: Path) -> None:
    """Whether their sizes are given, or are those that the collator pads."""
    settings: dict[str, Any] = {"count": 10, "max_steps": -1, "per_device_train_batch_size": 4}
    axes = {0: Dim("batch", max=4), 1: Dim("tokens", max=TOKENS)}
    names = ("input_ids", "attention_mask", "labels")
    found = []
    for folder in ("alone", "planned"):
        trainer = trainer_of(gpt2(), tmp_path / folder, num_train_epochs=2, **settings)
        trainer.train_dataset, trainer.data_collator = Ragged(10), pad
        if folder == "planned":
            options = {"dynamic_shapes": dict.fromkeys(names, axes)} if given else {}
            plans = planned(trainer, store, **options).plans
            assert len(plans) == 2, "one for masks of ones and one for others"
        trainer.train()
        found.append(weights(trainer))
    assert equal(*found)


def test_what_a_collator_pads() -> None:
    rows = Ragged(10)  # of 4 to 15 tokens

    def padding(rows: Any, collate: Any = pad, size: int = 4, last: int = 2) -> Any:
        loader = torch.utils.data.DataLoader(rows, collate_fn=collate)
        return find_padded_batches(loader, "input_ids", size, last, lambda batch: ((), batch))

    found = padding(rows)
    (batch, tokens), *others = [each.values() for each in found.dynamic_shapes.values()]
    assert all([*other] == [batch, tokens] for other in others) and len(others) == 2
    assert (batch.min, batch.max) == (2, 4)
    assert (tokens.min, tokens.max) == (5, 15)
    assert found.sample[1]["input_ids"].shape == (4, 15)
    (axes, *_) = padding(rows, last=0).dynamic_shapes.values()
    assert {axis: each.min for axis, each in axes.items()} == {1: 8}
    assert padding(Texts(10)) is None  # of one length
    assert padding([{"other": [1]}, {"other": [1, 2]}], size=1) is None
    assert padding([{"input_ids": torch.ones(size, 2)} for size in (1, 2)], size=1) is None
    assert padding(rows, collate=lambda rows: {"rows": [torch.ones(1)] * len(rows)}) is None


class Drawing(Ragged):
    """Rows of several lengths with noise from a generator of their own."""

    def __init__(self, count: int) -> None:
        super().__init__(count)
        self.generator, self.reads = torch.Generator().manual_seed(1), 0

    def __getitem__(self, index: int) -> dict[str, Any]:
        self.reads += 1
        row = super().__getitem__(index)
        drawn = torch.randint(50, row["labels"].shape, generator=self.generator)
        return {**row, "labels": drawn}


def test_planning_leaves_a_dataset_as_it_was(tmp_path: Path) -> None:
    trainer = trainer_of(gpt2(), tmp_path)
    trainer.train_dataset, trainer.data_collator = Drawing(10), pad
    state = trainer.train_dataset.generator.get_state()
    with pytest.raises(tightfit.ConfigError, match="budget"):
        plan_trainer(trainer, budget="nothing", progress=False)
    assert trainer.train_dataset.reads == 0
    assert torch.equal(trainer.train_dataset.generator.get_state(), state)


def test_a_smaller_last_batch_that_cannot_be_planned_is_told_early(
    store: Path, tmp_path: Path
) -> None:
    trainer = trainer_of(gpt2(), tmp_path, count=5, max_steps=-1)
    optimizer = trainer.create_optimizer()
    with pytest.raises(tightfit.ConfigError, match=r"has 1 rows .*dataloader_drop_last=True"):
        planned(trainer, store, optimizer=optimizer)


@pytest.mark.long
def test_what_it_saves_is_loaded_without_tightfit(store: Path, tmp_path: Path) -> None:
    trainer = trainer_of(gpt2(), tmp_path / "run", save_strategy="steps", save_steps=3)
    planned(trainer, store)
    trainer.train()
    for folder in (tmp_path / "run" / "checkpoint-3", tmp_path / "saved"):
        if not folder.exists():
            trainer.save_model(str(folder))
        plain = AutoModelForCausalLM.from_pretrained(folder)
        assert type(plain) is GPT2LMHeadModel
        assert equal(plain.state_dict(), weights(trainer))


@pytest.mark.long
def test_evaluation_and_generation(store: Path, tmp_path: Path) -> None:
    trainer = trainer_of(gpt2(), tmp_path)
    planned(trainer, store)
    trainer.train()
    twin = gpt2()
    twin.load_state_dict(weights(trainer))
    other = trainer_of(twin, tmp_path)
    assert trainer.evaluate(Texts(3))["eval_loss"] == other.evaluate(Texts(3))["eval_loss"]
    start = torch.tensor([[1, 2, 3]])
    settings: dict[str, Any] = {"max_new_tokens": 4, "do_sample": False, "pad_token_id": 0}
    assert torch.equal(trainer.model.generate(start, **settings), twin.generate(start, **settings))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"gradient_checkpointing": True}, "gradient_checkpointing=True, in whose place a plan"),
        ({"torch_compile": True}, "torch_compile=True, which cannot go through"),
    ],
)
def test_what_cannot_go_with_a_plan(given: Any, words: str, store: Path, tmp_path: Path) -> None:
    with pytest.raises(tightfit.ConfigError, match=words):
        planned(trainer_of(gpt2(), tmp_path, **given), store)


def test_what_is_no_trainer(store: Path) -> None:
    with pytest.raises(tightfit.ModelError, match="given a GPT2LMHeadModel instead of a"):
        planned(gpt2(), store)
    with pytest.raises(tightfit.ConfigError, match="batches is 0"):
        planned(trainer_of(gpt2(), store), store, batches=0)
