"""Menus: the ways to run each stage that there may be, where stages compute again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from tightfit.schemas.sequence import Operation
from tightfit.stages.combine.vectors import Integers


@dataclass(frozen=True)
class InnerPlan:
    """How a stage runs: ticks of its forward and backward, bytes `stored` for each batch in flight,
    its input among them, and `work` bytes beyond these while it runs. `there` are the operations of
    its forward, `back` those of its backward; both are empty where everything is kept."""

    forward: int
    backward: int
    stored: int
    work: int
    there: tuple[Operation, ...] = ()
    back: tuple[Operation, ...] = ()


@dataclass(frozen=True)
class Menu:
    """Rows `begin[k, l]` to `begin[k, l + 1]` are for the stage of layers k..l, the fastest first:
    ticks of both directions, bytes stored for each batch in flight, and bytes beyond these while it
    runs. `plan(k, l, row)` is the plan of one."""

    begin: Integers
    ticks: Integers
    stored: Integers
    work: Integers
    plan: Callable[[int, int, int], InnerPlan]

    @property
    def least(self) -> Integers:
        """The fewest ticks of each layer, entry 0 for nothing."""
        layers = range(1, len(self.begin) - 1)
        return np.array([0, *(self.ticks[self.begin[layer, layer]] for layer in layers)], np.int64)
