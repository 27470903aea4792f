"""Plans a small ResNet for several budgets, and prints the predicted peak and time of each.

    python examples/resnet_sweep.py

A plan is a number between all activations kept (100 %) and the smallest budget that is possible.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import torch
from torch import nn

import tightfit


class Residual(nn.Module):
    """Two convolutions with batch norm, and a connection around them."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(width, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
        )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return nn.functional.relu(images + self.layers(images))


def resnet(blocks: int, width: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, width, 3, padding=1),
        *(Residual(width) for _ in range(blocks)),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(width, 10),
    )


def sweep(
    blocks: int, width: int, size: int, budgets: Sequence[str]
) -> list[tuple[str, int, float]]:
    """The budget, the predicted peak in bytes and the predicted seconds of each plan."""
    torch.manual_seed(0)
    model = resnet(blocks, width).train()
    images, labels = torch.randn(8, 3, size, size), torch.randint(10, (8,))
    rows = []
    for budget in budgets:
        _, plan = tightfit.plan(
            model,
            (images,),
            loss=lambda logits: nn.functional.cross_entropy(logits, labels),
            budget=budget,
            check=False,
            progress=False,
        )
        assert plan.peak is not None and plan.time is not None
        rows.append((budget, plan.peak, plan.time))
    return rows


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--blocks", type=int, default=8)
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--size", type=int, default=64)
    parser.add_argument("--budgets", nargs="+", default=["100%", "75%", "50%", "min"])
    options = parser.parse_args(words)
    rows = sweep(**vars(options))
    for budget, peak, seconds in rows:
        ratio = seconds / rows[0][2]
        print(f"{budget:>5}  peak {peak / 1e6:8.1f} MB  predicted time {ratio:.3f} of the first")


if __name__ == "__main__":
    main()
