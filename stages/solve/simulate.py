"""Plays one block on its own, at true sizes: what an option costs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from schemas.problem import Problem


@dataclass(frozen=True)
class Run:
    """A block's forward and backward as lists of nodes, recomputations repeated."""

    forward: tuple[int, ...]
    backward: tuple[int, ...]


@dataclass(frozen=True)
class Figures:
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


def simulate(problem: Problem, run: Run) -> Figures:
    """Plays a run; every storage is freed right after its last use before it is made again.

    A random node that runs twice has its saved state from before its first run to after its last,
    and one more while it is restored, as the referee counts it. Raises ValueError when a node reads
    what has not been made, runs again though it must not, or the loss's inputs are missing.
    """
    order = [*run.forward, problem.loss, *run.backward]
    check_order(problem, order)
    change = _changes(problem, order)
    runs = Counter(order)
    live = 0
    before, peaks = [], []
    for step, position in enumerate(order):
        node = problem.nodes[position]
        saving = node.random and runs[position] > 1
        before.append(live)
        peaks.append(live + node.peak + (problem.state_bytes if saving else 0))
        live += change[step]
    middle = len(run.forward)
    return Figures(
        save=before[middle],
        forward_peak=max([before[middle], *peaks[:middle]]),
        backward_peak=max(peaks[middle + 1 :], default=0),
        forward_seconds=sum(problem.nodes[position].seconds for position in run.forward),
        backward_seconds=sum(problem.nodes[position].seconds for position in run.backward),
    )


def check_order(problem: Problem, order: Sequence[int]) -> None:
    """Raises ValueError when an order of nodes, the loss included, could not run."""
    made: set[int] = set()
    seen: set[int] = set()
    for position in order:
        node = problem.nodes[position]
        for storage in node.inputs:
            if storage not in made and problem.storages[storage].producer >= 0:
                raise ValueError(f"node {position} reads storage {storage} before it is made")
        if position in seen and not node.repeatable:
            raise ValueError(f"node {position} runs again")
        made.update(node.outputs)
        seen.add(position)


def _changes(problem: Problem, order: Sequence[int]) -> list[int]:
    """By how many bytes what is live changes from before each step to after it."""
    change = [0] * len(order)
    runs: dict[int, list[int]] = {}
    last_use: dict[int, int] = {}
    for step in reversed(range(len(order))):
        node = problem.nodes[order[step]]
        runs.setdefault(order[step], []).append(step)
        for storage in node.outputs:
            stored = problem.storages[storage]
            change[step] += stored.bytes
            death = last_use.pop(storage, step)
            if not (stored.held or stored.gradient):
                change[death] -= stored.bytes
        for storage in node.inputs:
            last_use.setdefault(storage, step)
    for position, steps in runs.items():
        if problem.nodes[position].random and len(steps) > 1:
            change[steps[-1]] += problem.state_bytes
            change[steps[0]] -= problem.state_bytes
    return change
