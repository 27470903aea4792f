"""Trains a small network under Lightning's Trainer, planned to a budget by a callback.

    python examples/lightning_fit.py

`LightningFit` plans within the first training call; batches of another size are planned when they
come, within the same budget.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import tightfit


class Task(lightning.LightningModule):
    """Learns to give its inputs back."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        blocks = (nn.Sequential(nn.Linear(width, width), nn.GELU()) for _ in range(layers))
        self.net = nn.Sequential(*blocks)
        self.losses: list[float] = []

    def training_step(self, batch: Sequence[torch.Tensor], index: int) -> torch.Tensor:
        loss = nn.functional.mse_loss(self.net(batch[0]), batch[0])
        self.losses.append(loss.item())
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


def train(width: int, layers: int, callbacks: Sequence[Any]) -> list[float]:
    """The losses of two epochs; the last batch of each is smaller."""
    torch.manual_seed(0)
    task, rows = Task(width, layers), torch.randn(1280, width)
    trainer = lightning.Trainer(
        max_epochs=2,
        callbacks=[*callbacks],
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(task, DataLoader(TensorDataset(rows), batch_size=512))
    return task.losses


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--budget", default="60%")
    options = vars(parser.parse_args(words))
    fit = tightfit.integrations.LightningFit(budget=options.pop("budget"), progress=False)
    plain, fitted = train(**options, callbacks=[]), train(**options, callbacks=[fit])
    print(fit.plan.message if fit.plan is not None else "no plan")
    print("losses", fitted)
    print("equal to Lightning" if plain == fitted else "NOT EQUAL to Lightning")


if __name__ == "__main__":
    main()
