"""Outputs of the kinds that people make: named tuples and dataclasses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor, nn

from tests.battery.case import Case
from tests.battery.cases import rows


class Pair(NamedTuple):
    mean: Tensor
    spread: Tensor


@dataclass
class Report:
    value: Tensor
    pair: Pair
    note: str


class Named(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mean, self.spread = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Pair:
        return Pair(self.mean(x), self.spread(x).exp())


class Reporting(Named):
    def forward(self, x: Tensor) -> Report:  # type: ignore[override]
        pair = super().forward(x)
        return Report(pair.mean * pair.spread, pair, "a note")


RECORDS = (
    Case("named tuple", Named, rows),
    Case("dataclass", Reporting, rows),
)
