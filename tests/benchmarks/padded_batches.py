"""DistilBERT under transformers' Trainer, on batches that are padded to their longest row."""

from __future__ import annotations

import random
import tempfile
from pathlib import Path
from typing import Any

import torch

_BATCH = 8
_SHORTEST = 5
_EPOCHS = 2
Row = dict[str, Any]


class RandomTexts(torch.utils.data.Dataset[Row]):
    """Texts of random ids and random lengths up to a longest, with a class each."""

    def __init__(self, count: int, longest: int) -> None:
        chance = random.Random(0)
        torch.manual_seed(0)
        self.rows = [
            torch.randint(1000, (chance.randint(_SHORTEST, longest),)) for _ in range(count)
        ]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Row:
        row = self.rows[index]
        return {"input_ids": row, "attention_mask": torch.ones_like(row), "labels": row[0] % 3}


class _Padding:
    """Pads a batch to its longest row, and keeps the shapes that it has made."""

    def __init__(self) -> None:
        self.shapes: set[tuple[int, ...]] = set()

    def __call__(self, rows: list[Row]) -> Row:
        padded: Row = {
            name: torch.nn.utils.rnn.pad_sequence([row[name] for row in rows], batch_first=True)
            for name in ("input_ids", "attention_mask")
        }
        self.shapes.add(tuple(padded["input_ids"].shape))
        return padded | {"labels": torch.stack([row["labels"] for row in rows])}


def distilbert(layers: int, width: int) -> torch.nn.Module:
    """DistilBertForSequenceClassification of three classes, with its dropout."""
    from transformers import DistilBertConfig, DistilBertForSequenceClassification

    sizes: dict[str, Any] = {"n_layers": layers, "dim": width, "hidden_dim": 4 * width}
    sizes |= {"vocab_size": 1000, "n_heads": 2, "num_labels": 3}
    model: torch.nn.Module = DistilBertForSequenceClassification(DistilBertConfig(**sizes))
    return model.train()


def describe_trainer_run(scale: str) -> str:
    """What a training with one plan is beside that of the model on its own, for people."""
    import copy

    from tightfit.integrations import plan_trainer

    longest = {"small": 32, "narrow": 512, "full": 512}[scale]
    layers, width = {"small": (1, 32), "narrow": (2, 32), "full": (6, 384)}[scale]
    torch.manual_seed(0)
    model = distilbert(layers, width)
    data = RandomTexts(24 * _BATCH + 3, longest)
    found, padding = [], _Padding()
    with tempfile.TemporaryDirectory() as folder:
        for planned in (False, True):
            trainer = _trainer(copy.deepcopy(model), data, padding, Path(folder))
            if planned:
                store = Path(folder) / "store"
                plan = plan_trainer(trainer, budget="50%", store=store, progress=False)
            padding.shapes.clear()
            trainer.train()
            losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
            found.append((losses, [*trainer.model.state_dict().values()]))
    (losses, weights), (others, planned_weights) = found
    equal = losses == others and all(map(torch.equal, weights, planned_weights))
    sizes = plan.dynamic.describe() if plan.dynamic else "one size"
    return (
        f"DistilBERT, {layers} layers, Trainer: {len(losses)} batches of {len(padding.shapes)} "
        f"shapes, {len(plan.plans)} plans, of which {len(plan.replans)} were made on the way, of "
        f"{sizes}; losses and weights {'equal' if equal else 'NOT EQUAL'}"
    )


def _trainer(model: Any, data: RandomTexts, padding: _Padding, folder: Path) -> Any:
    from transformers import PrinterCallback, Trainer, TrainingArguments

    settings: dict[str, Any] = {
        "output_dir": str(folder / "run"),
        "per_device_train_batch_size": _BATCH,
        "num_train_epochs": _EPOCHS,
        "report_to": [],
        "use_cpu": True,
        "disable_tqdm": True,
        "save_strategy": "no",
        "logging_strategy": "steps",
        "logging_steps": 1,
    }
    arguments = TrainingArguments(**settings)
    trainer = Trainer(model=model, args=arguments, train_dataset=data, data_collator=padding)
    trainer.remove_callback(PrinterCallback)
    return trainer
