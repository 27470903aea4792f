"""Plays one block on its own, at true sizes: what an option costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tightfit.schemas.problem import Problem
from tightfit.stages.replay.line import FASTEST, executions, forms


@dataclass(frozen=True)
class BlockRun:
    """A block's forward and backward as lists of nodes, recomputations repeated."""

    forward: tuple[int, ...]
    backward: tuple[int, ...]


@dataclass(frozen=True)
class BlockFigures:
    """What a run costs, in bytes and seconds, as `schemas.options.Option` defines them."""

    save: int
    forward_peak: int
    backward_peak: int
    forward_seconds: float
    backward_seconds: float

    @property
    def peak(self) -> int:
        """The larger of both peaks."""
        return max(self.forward_peak, self.backward_peak)

    @property
    def seconds(self) -> float:
        """Forward and backward together."""
        return self.forward_seconds + self.backward_seconds


def simulate(problem: Problem, run: BlockRun) -> BlockFigures:
    """Plays a run, by the lifetimes of `stages.replay.line`, in place where that takes no longer.

    Raises ValueError when a node reads what has not been made, runs again though it must not, or
    the loss's inputs are missing.
    """
    order = [*run.forward, problem.loss, *run.backward]
    check_order(problem, order)
    played = executions(problem, order, in_place=True, ceiling=FASTEST)
    middle = len(run.forward)
    forward, loss, backward = played[:middle], played[middle], played[middle + 1 :]
    return BlockFigures(
        save=loss.before,
        forward_peak=max([loss.before, *(execution.peak for execution in forward)]),
        backward_peak=max((execution.peak for execution in backward), default=0),
        forward_seconds=sum(execution.seconds for execution in forward),
        backward_seconds=sum(execution.seconds for execution in backward),
    )


def check_order(problem: Problem, order: Sequence[int]) -> None:
    """Raises ValueError when an order of nodes, the loss included, could not run."""
    made: set[int] = set()
    seen: set[int] = set()
    for position, form in zip(order, forms(problem, order), strict=True):
        for storage in form.inputs:
            if storage not in made and problem.storages[storage].producer >= 0:
                raise ValueError(f"node {position} reads storage {storage} before it is made")
        if position in seen and not problem.nodes[position].repeatable:
            raise ValueError(f"node {position} runs again")
        made.update(form.outputs)
        seen.add(position)
