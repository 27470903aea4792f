"""The optimum of small problems, from all ways to run them."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator
from typing import TypeAlias

from tests.stages.combine.problems import repeatable
from tightfit.schemas.graph.planning_graph import PlanningGraph

State: TypeAlias = tuple[frozenset[int], frozenset[int]]
"""The nodes that have run and the storages that are there."""

STATES = 100_000


class TooLargeError(Exception):
    """There are more states than anybody wants to wait for."""


def optimum(problem: PlanningGraph, budget: int) -> float | None:
    """The least seconds within a budget of all orders of first and further runs, in place or not;
    None where there is no way. Random states take no bytes here, so that no plan is below it."""
    start: State = (frozenset(), frozenset())
    queue: list[tuple[float, int, State]] = [(0.0, 0, start)]
    done: set[State] = set()
    number = itertools.count(1)
    again = set(repeatable(problem))
    while queue:
        seconds, _, state = heapq.heappop(queue)
        if len(state[0]) == len(problem.nodes):
            return seconds
        if state in done:
            continue
        done.add(state)
        if len(done) > STATES:
            raise TooLargeError
        for taken, other in following(problem, budget, state, again):
            if other not in done:
                heapq.heappush(queue, (seconds + taken, next(number), other))
    return None


def following(
    problem: PlanningGraph, budget: int, state: State, again: set[int]
) -> Iterator[tuple[float, State]]:
    """What can come next: a storage is freed, or a node runs, by any of its forms."""
    ran, there = state
    live = sum(problem.storages[storage].bytes for storage in there)
    free = [storage for storage in there if not problem.storages[storage].stays]
    for storage in free:
        yield 0.0, (ran, there - {storage})
    in_turn = {place for place, node in enumerate(problem.nodes[: problem.loss]) if node.random}
    for position in problem.positions:
        node = problem.nodes[problem.node_at(position)]
        if problem.is_alternative(position):
            if problem.node_at(position) not in ran:
                continue
        elif position in ran and position not in again:
            continue
        if node.phase == "backward" and problem.loss not in ran:
            continue
        if node.phase == "loss" and not ran.issuperset(in_turn):
            continue
        form = problem.variant_at(position, position in ran)
        made = frozenset(form.outputs)
        if not there.issuperset(form.inputs) or made & there:
            continue
        ran_then = ran | {problem.node_at(position)}
        if live + form.peak <= budget:
            yield form.seconds, (ran_then, there | made)
        for reuse in form.reuses:
            if reuse.storage in free and live + reuse.peak <= budget:
                yield reuse.seconds, (ran_then, (there - {reuse.storage}) | made)
