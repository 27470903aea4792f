"""A node that runs again in another form: what search, opening and bounds make of it."""

from __future__ import annotations

import numpy as np
import pytest

from tightfit.schemas.graph.planning_graph import (
    PlanningGraph,
    PlanningNode,
    PlanningStorage,
    RecomputeVariant,
)
from tightfit.stages.combine.bounds.lower_bounds import node_time_lower_bound
from tightfit.stages.combine.local_search.arrays import build_arrays
from tightfit.stages.combine.local_search.liveness import memory_timeline
from tightfit.stages.combine.local_search.search import LocalSearch
from tightfit.stages.simulate.liveness import simulate_executions


@pytest.fixture
def problem() -> PlanningGraph:
    """Node 0 makes 10 bytes and, for 1 byte more, what makes them again in a tenth of the time."""
    nodes = [
        PlanningNode(
            0, "forward", 10.0, 11, [], [0, 1], [], False, True, RecomputeVariant([1], [0], 1.0, 12)
        ),
        PlanningNode(1, "forward", 1.0, 10, [0], [2], [], False, True),
        PlanningNode(2, "forward", 1.0, 4, [2], [3], [], False, False),
        PlanningNode(3, "loss", 0.0, 4, [3], [4], [], False, False),
        PlanningNode(4, "backward", 1.0, 4, [0, 4], [5], [], False, True),
        PlanningNode(5, "backward", 1.0, 4, [1, 5], [6], [], False, True),
    ]
    sizes = [10, 1, 10, 4, 4, 4, 4]
    makers = [0, 0, 1, 2, 3, 4, 5]
    storages = [
        PlanningStorage(size, maker, index in (3, 4), index == 6)
        for index, (size, maker) in enumerate(zip(sizes, makers, strict=True))
    ]
    return PlanningGraph(nodes, storages, state_bytes=0)


def line_of(problem: PlanningGraph, sequence: list[int]) -> tuple[list[int], int, float]:
    line = np.zeros(len(sequence), np.int64)
    peak, seconds = memory_timeline(
        build_arrays(problem, False), np.array(sequence, np.int64), len(sequence), 0, line
    )
    return line.tolist(), peak, seconds


def test_the_second_run_is_the_shorter_one_and_needs_what_the_first_left(
    problem: PlanningGraph,
) -> None:
    line, peak, seconds = line_of(problem, [0, 1, 2, 3, 0, 4, 5])
    assert seconds == 10 + 1 + 1 + 1 + 1 + 1
    # Before the second run there are 1 byte of the first, the output and the tangent.
    assert line == [11, 21, 15, 9, 9 + 12, 23, 17]
    assert peak == 23


def test_its_lifetimes_keep_what_the_first_left(problem: PlanningGraph) -> None:
    runs = simulate_executions(problem, [0, 1, 2, 3, 0, 4, 5], in_place=True)
    assert [run.drops for run in runs] == [[], [0], [2], [], [], [0], [1, 5]]


def test_local_search_recomputes_it_where_memory_is_short(problem: PlanningGraph) -> None:
    annealed = LocalSearch(problem).improve({}, 23)
    assert annealed.sequence == [0, 1, 2, 3, 0, 4, 5]
    assert (annealed.peak, annealed.seconds) == (23, 15.0)


def test_the_bound_counts_the_shorter_form(problem: PlanningGraph) -> None:
    assert node_time_lower_bound(problem, 5 + 4) <= 15.0
