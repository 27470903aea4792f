"""How integer programs unroll a step: into stages, in which what runs for the first time is fixed
and what runs again is chosen (C; Z 2.1.1 and 2.3)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class UnrolledStage:
    """`candidates` may run again, in ascending order, before `tail` runs; both are positions of
    nodes or tasks."""

    candidates: tuple[int, ...]
    tail: tuple[int, ...]

    @property
    def steps(self) -> tuple[int, ...]:
        """All that may run in the stage, in order."""
        return self.candidates + self.tail


def stages_per_node(repeatable: Sequence[bool]) -> list[UnrolledStage]:
    """One stage for each that runs, with all before it that can run again: the formulation as Z
    2.1.1 has it. `repeatable` says by position which can."""
    return [
        UnrolledStage(tuple(k for k in range(t) if repeatable[k]), (t,))
        for t in range(len(repeatable))
    ]


def stages_after_loss(
    count: int,
    loss: int,
    begins: Callable[[int], bool],
    makers: Callable[[Iterable[int]], set[int]],
) -> list[UnrolledStage]:
    """All up to the loss in one stage, of `count` that run, then one for each that `begins` one,
    with those that follow and begin none.

    Candidates are what a stage or a later one may need, as `makers` says of some. Nothing runs
    again before the loss. A stage begins where something reads what could have been dropped:
    between two of these nothing new is missing.
    """
    tails: list[list[int]] = [list(range(loss + 1))]
    for k in range(loss + 1, count):
        if begins(k):
            tails.append([k])
        else:
            tails[-1].append(k)
    stages: list[UnrolledStage] = []
    useful: set[int] = set()
    for number in reversed(range(len(tails))):
        useful |= makers(tails[number])
        candidates = [k for k in sorted(useful) if number and k < tails[number][0]]
        stages.append(UnrolledStage(tuple(candidates), tuple(tails[number])))
    return stages[::-1]
