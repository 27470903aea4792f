"""Where a node has several forms, the search takes the one that is best for each further run."""

from __future__ import annotations

import pytest

from tests.stages.combine.bounds.brute_force import optimum
from tightfit.schemas.graph.planning_graph import (
    PlanningGraph,
    PlanningNode,
    PlanningStorage,
    RecomputeAlternative,
    RecomputeVariant,
)
from tightfit.stages.combine.local_search.search import LocalSearch

SUM, NORM = 1, 2
"""What node 1 makes."""


def normed(*alternatives: RecomputeVariant) -> PlanningGraph:
    """Node 1 makes a sum and its norm, which later nodes read, and the backward in turn."""
    nodes = [
        PlanningNode(0, "forward", 1.0, 3, [], [0], [], False, True),
        PlanningNode(1, "forward", 4.0, 8, [0], [SUM, NORM], [], False, True),
        PlanningNode(2, "forward", 9.0, 5, [NORM], [3], [], False, True),
        PlanningNode(3, "forward", 9.0, 12, [SUM, 3], [4], [], False, True),
        PlanningNode(4, "loss", 0.0, 1, [4], [5], [], False, False),
        PlanningNode(5, "backward", 1.0, 2, [SUM, 5], [6], [], False, True),
        PlanningNode(6, "backward", 1.0, 14, [NORM, 6], [7], [], False, True),
        PlanningNode(7, "backward", 1.0, 2, [SUM, 7], [8], [], False, True),
    ]
    makers = [0, 1, 1, 2, 3, 4, 5, 6, 7]
    sizes = [3, 4, 4, 5, 3, 1, 2, 2, 2]
    storages = [
        PlanningStorage(size, maker, number in (4, 5), number == 8)
        for number, (size, maker) in enumerate(zip(sizes, makers, strict=True))
    ]
    found = [
        RecomputeAlternative(1, len(nodes) + number, form)
        for number, form in enumerate(alternatives)
    ]
    return PlanningGraph(nodes, storages, 0, found)


OF_THE_SUM = RecomputeVariant([SUM], [NORM], 1.0, 4)
SUM_ALONE = RecomputeVariant([0], [SUM], 1.5, 4)
WITHOUT_SUM = RecomputeVariant([0], [NORM], 2.0, 4)


@pytest.mark.parametrize(
    "forms",
    [[], [OF_THE_SUM], [SUM_ALONE], [WITHOUT_SUM], [OF_THE_SUM, SUM_ALONE, WITHOUT_SUM]],
    ids=["none", "of the sum", "sum alone", "without sum", "all"],
)
def test_the_search_finds_the_optimum_with_the_forms_that_there_are(
    forms: list[RecomputeVariant],
) -> None:
    problem = normed(*forms)
    local_search = LocalSearch(problem)
    budget = local_search.measure(local_search.keep_all)[0]
    taken: set[int] = set()
    while (best := optimum(problem, budget)) is not None:
        found = local_search.refine([local_search.keep_all], budget)
        assert (found.peak <= budget, found.seconds) == (True, best), budget
        taken |= set(found.sequence) - set(local_search.keep_all)
        budget -= 1
    assert len(taken) == min(len(forms), 2)
