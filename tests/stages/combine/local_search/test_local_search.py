from __future__ import annotations

from hypothesis import given, settings

from tests.stages.combine.problems import problems
from tightfit.schemas.graph.planning_graph import PlanningGraph
from tightfit.stages.combine.local_search.search import LocalSearch


@settings(max_examples=60, deadline=None)
@given(problems())
def test_a_sweep_does_not_depend_on_the_number_of_workers(problem: PlanningGraph) -> None:
    local_search = LocalSearch(problem)
    alone = local_search.sweep([], 1, 1)
    for workers in (2, 16):
        told: list[tuple[int, int]] = []

        def report(done: int, most: int, doing: str, told: list[tuple[int, int]] = told) -> None:
            told.append((done, most))

        assert local_search.sweep([], 1, workers, report) == alone
        assert told == sorted(told) and all(done <= most for done, most in told)
