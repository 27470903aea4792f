"""Plays one block on its own, at true sizes: what an option costs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from tightfit.schemas.graph.planning_graph import (
    InPlaceVariant,
    PlanningGraph,
    PlanningNode,
    RecomputeVariant,
)
from tightfit.stages.simulate.liveness import (
    INFINITE_IN_PLACE_THRESHOLD,
    execution_forms,
    simulate_executions,
)


@dataclass(frozen=True)
class BlockSchedule:
    """A block's forward and backward as lists of nodes, recomputations repeated."""

    forward: tuple[int, ...]
    backward: tuple[int, ...]


@dataclass(frozen=True)
class BlockCost:
    """What a run costs, in bytes and seconds, as `schemas.block_options.BlockOption` defines
    them."""

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


def simulate_block(problem: PlanningGraph, run: BlockSchedule) -> BlockCost:
    """Plays a run, by the lifetimes of `stages.simulate.liveness`, in place where that takes no
    longer.

    Raises ValueError when a node reads what has not been made, runs again though it must not, or
    the loss's inputs are missing.
    """
    order = [*run.forward, problem.loss, *run.backward]
    check_execution_order(problem, order)
    played = simulate_executions(problem, order, in_place=True, ceiling=INFINITE_IN_PLACE_THRESHOLD)
    middle = len(run.forward)
    forward, loss, backward = played[:middle], played[middle], played[middle + 1 :]
    return BlockCost(
        save=loss.before,
        forward_peak=max([loss.before, *(execution.peak for execution in forward)]),
        backward_peak=max((execution.peak for execution in backward), default=0),
        forward_seconds=sum(execution.seconds for execution in forward),
        backward_seconds=sum(execution.seconds for execution in backward),
    )


def check_execution_order(problem: PlanningGraph, order: Sequence[int]) -> None:
    """Raises ValueError when an order of nodes, the loss included, could not run."""
    made: set[int] = set()
    seen: set[int] = set()
    for position, form in zip(order, execution_forms(problem, order), strict=True):
        for storage in form.inputs:
            if storage not in made and problem.storages[storage].producer >= 0:
                raise ValueError(f"node {position} reads storage {storage} before it is made")
        if position in seen and not problem.nodes[position].repeatable:
            raise ValueError(f"node {position} runs again")
        made.update(form.outputs)
        seen.add(position)


class SubproblemBuilder:
    """Numbers the storages of a part of a problem, and writes its nodes; `bytes_of` says what the
    part counts of a storage. `numbers` are by storage."""

    def __init__(self, problem: PlanningGraph, bytes_of: Callable[[int], int]) -> None:
        self.problem = problem
        self.bytes_of = bytes_of
        self.numbers: dict[int, int] = {}

    def number(self, storages: Iterable[int]) -> list[int]:
        """The numbers of storages, of new ones the next."""
        return [self.numbers.setdefault(storage, len(self.numbers)) for storage in storages]

    def node(self, position: int, op: int, repeatable: bool, repeats: bool) -> PlanningNode:
        """The node at a position of the problem, as the op of another number; it has the form of a
        further run where it `repeats`."""
        node = self.problem.nodes[position]
        return PlanningNode(
            op=op,
            phase=node.phase,
            seconds=node.seconds,
            peak=self._peak(node),
            inputs=self.number(node.inputs),
            outputs=self.number(node.outputs),
            reuses=self._reuses(node),
            random=node.random,
            repeatable=repeatable,
            repeat=self._repeat(node.repeat) if node.repeat and repeats else None,
        )

    def _repeat(self, form: RecomputeVariant) -> RecomputeVariant:
        inputs, outputs = self.number(form.inputs), self.number(form.outputs)
        return RecomputeVariant(inputs, outputs, form.seconds, self._peak(form))

    def _reuses(self, node: PlanningNode) -> list[InPlaceVariant]:
        """The forms in place that take no longer, of storages that the part counts."""
        if not node.outputs or not self.bytes_of(node.outputs[0]):
            return []
        spared = self._uncounted(node)
        return [
            InPlaceVariant(self.numbers[reuse.storage], reuse.seconds, reuse.peak - spared)
            for reuse in node.reuses
            if reuse.seconds <= node.seconds and self.bytes_of(reuse.storage)
        ]

    def _peak(self, form: PlanningNode | RecomputeVariant) -> int:
        return form.peak - self._uncounted(form)

    def _uncounted(self, form: PlanningNode | RecomputeVariant) -> int:
        """The bytes of what a run makes that the part does not count."""
        storages = self.problem.storages
        return sum(storages[s].bytes - self.bytes_of(s) for s in form.outputs)
