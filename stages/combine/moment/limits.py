"""How a run of an engine on a program is limited, and how it ended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tightfit.schemas.engines import HIGHS, Engine
from tightfit.stages.combine.moment.matrix import Floats

NOTHING_FOUND = np.zeros(0)
Start = Sequence[tuple[int, float]]
"""Columns with their values."""


@dataclass(frozen=True)
class Limits:
    """When a solve ends before the optimum is proven: at a `gap` in shares of the step, after
    `nodes` of the search tree, after `checks` questions of HiGHS whether to go on, after
    `iterations` of an LP, and, as the last guard, after `seconds`. HiGHS asks between rounds of its
    work; CBC does not, and counts no iterations. The `engine` is the one that solves."""

    gap: float = 2e-4
    nodes: int = 10
    checks: int = 50
    iterations: int = 200_000
    seconds: float = 120.0
    engine: Engine = HIGHS


@dataclass(frozen=True)
class Ended:
    """How a run ended: `infeasible` is what the engine has proven. `values` are those of the
    columns, empty where no solution was found, `prices` those of the rows of a program without
    whole numbers. No solution of one with them is below `bound`, as far as the engine's tolerances
    go. `iterations` counts the work; `clock` says that the clock ended it."""

    infeasible: bool
    values: Floats
    prices: Floats
    bound: float
    iterations: int
    clock: bool
