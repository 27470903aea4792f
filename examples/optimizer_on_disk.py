"""Trains a multilayer perceptron whose parameters and Adam states are on a disk.

    python examples/optimizer_on_disk.py --disk /data/scratch

The plan brings each layer to the device when a step needs it, and updates it in the backward.
"""

from __future__ import annotations

import argparse
import copy
import tempfile
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

import tightfit


def loss_of(output: torch.Tensor) -> torch.Tensor:
    return output.square().mean()


def train(model: nn.Module, optimizer: torch.optim.Optimizer, batch: torch.Tensor) -> float:
    """Trains for one step and returns its loss."""
    loss = loss_of(model(batch))
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.item()


def losses_of(width: int, layers: int, steps: int, disk: str) -> tuple[list[float], list[float]]:
    """The losses of the plan and those of torch.optim, step by step."""
    torch.manual_seed(0)
    kinds = [nn.Linear(width, width), nn.Tanh()]
    model = nn.Sequential(*(copy.deepcopy(kind) for _ in range(layers) for kind in kinds))
    plain = copy.deepcopy(model)
    batches = [torch.randn(16, width) for _ in range(steps)]

    module, plan = tightfit.plan(
        model,
        (batches[0],),
        loss=loss_of,
        budget="min",
        optimizer=torch.optim.AdamW(model.parameters(), lr=1e-3),
        offload=tightfit.ParameterOffloadOptions(disk),
        progress=False,
    )
    print(plan.summary())
    optimizer: Any = plan.optimizer
    expected = torch.optim.AdamW(plain.parameters(), lr=1e-3)
    found, wanted = [], []
    for batch in batches:
        found.append(train(module, optimizer, batch))
        wanted.append(train(plain, expected, batch))
    optimizer.close()
    return found, wanted


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--disk", help="a folder, by default a temporary one")
    options = parser.parse_args(words)
    with tempfile.TemporaryDirectory() as folder:
        disk = options.disk or folder
        found, wanted = losses_of(options.width, options.layers, options.steps, disk)
    print("losses", ", ".join(f"{loss:.6f}" for loss in found))
    print("equal to torch.optim" if found == wanted else "NOT EQUAL to torch.optim")


if __name__ == "__main__":
    main()
