"""Joins in which everything takes one slot of memory, as the papers tabulate them (S ch. 1, J)."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tightfit.schemas.sequence import NO_OPTION
from tightfit.stages.combine.chain.options import ChainProblem, PositionOption, PositionOptions
from tightfit.stages.combine.join.dp_table import build_join_table
from tightfit.stages.combine.join.problem import JoinProblem


def build_unit_join(
    lengths: Sequence[int],
    kept: Sequence[bool],
    forward: float = 1.0,
    backward: float = 1.0,
    turn: float = 1.0,
) -> JoinProblem:
    """The join of S ch. 1 and J: MULTI-b, where everything takes one slot of memory.

    Branch j has `lengths[j]` steps, and the gradient of its input stays to the end where `kept[j]`.
    A backward reads the input of its step and the gradient of its output, so that a way keeps
    nothing; results overwrite inputs that are not needed again (S Table 1.1). A forward takes
    `forward` seconds, a backward `backward` and the loss `turn`.
    """
    way = PositionOption(NO_OPTION, 0, 0, 1, 0.0, backward, at_once=True)
    step = PositionOptions(1, 1, 0, forward, 1, [way], in_place=True)
    branches = [
        ChainProblem([step] * length, always_resident=1, loss=False, released=0 if stays else 1)
        for length, stays in zip(lengths, kept, strict=True)
    ]
    return JoinProblem(
        branches, PositionOptions(0, 0, 0, 0.0, 0, [PositionOption(NO_OPTION, 0, 0, 0, 0.0, turn)])
    )


def unit_join_makespans(join: JoinProblem, slots: int) -> list[float]:
    """The least time of a join of unit sizes within 0, 1, .. `slots` slots, infinite where they do
    not do."""
    fixed = join.always_resident
    if slots < fixed:
        return [math.inf] * (slots + 1)
    times = build_join_table(join, slots - fixed, max(slots - fixed, 1)).times
    return [*([math.inf] * fixed), *(times.base + lost for lost in times.lost.tolist())]
