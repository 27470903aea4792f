"""What choose says of a bound, and what it does not believe."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import Any

import pytest

from tests.stages.combine.local_search.test_optimum import chain
from tests.stages.simulate.problem_graphs import graph_of
from tests.stages.simulate.test_transfers import COMES, LINK, Away, played
from tightfit.schemas.actions import Free, Offload, Prefetch, Wait
from tightfit.schemas.costs import Costs
from tightfit.schemas.frontier import Frontier, ParetoPoint
from tightfit.schemas.graph.planning_graph import PlanningGraph
from tightfit.schemas.graph.training_graph import Graph
from tightfit.schemas.plan import Plan
from tightfit.stages.combine import refine_plan
from tightfit.stages.combine import select_plan as room
from tightfit.stages.combine.bounds.cuts import TimeBound
from tightfit.stages.combine.bounds.lower_bounds import (
    prove_time_lower_bound,
    time_lower_bound,
)
from tightfit.stages.combine.frontier import FrontierProblem, build_frontier
from tightfit.stages.combine.local_search.search import LocalSearch
from tightfit.stages.combine.lowering.blocks import run_actions
from tightfit.stages.combine.select_plan import _BudgetMeasure
from tightfit.stages.combine.strategies.strategy import Candidate, load_strategy
from tightfit.stages.simulate.planning_graph import build_planning_graph
from tightfit.util.budget import parse_budget

Step = tuple[Graph, Costs, PlanningGraph]


@pytest.fixture(scope="module")
def step() -> Step:
    graph, costs = graph_of(chain([6, 3, 3, 2, 2], [1, 3, 5, 4, 5]), False)
    return graph, costs, build_planning_graph(graph, costs)


def chosen(step: Step, budget: str = "80%", total: int | None = None) -> Plan:
    graph, costs, problem = step
    captured = Candidate(run_actions(problem, [node.op for node in problem.nodes]), [], "plain")
    about = load_strategy("rockmate").about
    made = build_frontier(FrontierProblem(graph, "digest", costs, problem), about, [], captured)
    return room.select_plan(graph, costs, problem, made, budget, total=total)[0]


def test_the_bound_is_that_of_the_budget_that_is_asked(step: Step) -> None:
    graph, costs, problem = step
    plan = chosen(step)
    assert plan.budget_bytes is not None and plan.time is not None and plan.lower_bound is not None
    assert plan.recomputed > 0
    proven = prove_time_lower_bound(graph, costs, problem, plan.budget_bytes)
    assert (plan.lower_bound, proven.clock) == (proven.seconds, False)
    assert time_lower_bound(graph, costs, problem, plan.budget_bytes) < proven.seconds <= plan.time
    assert "clock" not in plan.message and "fault" not in plan.message


def sizes_of(message: str) -> list[str]:
    """The budget that is asked for, the smallest that works and what no plan takes less than."""
    found = re.match(
        r"infeasible: (.*), the smallest budget known .* is (.*?);.*no plan takes less(.*?), which",
        message,
    )
    assert found is not None, message
    return [each.removeprefix(" than ") for each in found.groups()]


def test_sizes_are_told_in_the_measure_that_was_asked_in(step: Step) -> None:
    small, smallest, floor = sizes_of(chosen(step, "1%").message)
    assert small == "1% is too small"
    assert re.fullmatch(r"\d+(\.\d)?%", smallest)
    assert not floor or float(floor[:-1]) <= float(smallest[:-1])
    assert chosen(step, smallest).feasible
    small, smallest, floor = sizes_of(chosen(step, "1B").message)
    assert small == "the budget is 1 byte"
    assert "%" not in smallest + floor
    assert chosen(step, smallest).feasible


def test_shares_of_another_step_than_the_budgets_are_not_told(step: Step) -> None:
    small, smallest, floor = sizes_of(chosen(step, "1%", total=1).message)
    assert small == "1% is 1 byte" and "%" not in smallest + floor


@pytest.mark.parametrize("free", [7, 999, 10**6 + 1, 10**12 + 7])
def test_a_share_works_when_it_is_typed_in(free: int) -> None:
    measure = _BudgetMeasure(100, free)
    for above in (0, 1, free // 3, free - 1, free):
        text = measure.format_sufficient(100 + above)
        assert parse_budget(text).total(100, 100 + free) >= 100 + above
        least = measure.format_necessary(100 + above)
        assert least == "0%" or parse_budget(least).total(100, 100 + free) <= 100 + above
    assert measure.format_sufficient(100 + free) == measure.format_necessary(100 + free) == "100%"


def test_a_floor_that_is_reached_is_not_told_twice(
    step: Step, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = chosen(step, "1%")
    assert plan.smallest_budget is not None
    own = plan.smallest_budget - plan.baseline.bytes_before_step
    monkeypatch.setattr(room, "locate_peak_lower_bound", lambda _: (own, 0))
    assert sizes_of(chosen(step, "1%").message)[2] == ""


def test_a_bound_above_a_plan_is_not_believed(step: Step, monkeypatch: pytest.MonkeyPatch) -> None:
    graph, costs, problem = step
    for wrong in (math.inf, 1000.0):
        monkeypatch.setattr(
            room, "prove_time_lower_bound", lambda *_, wrong=wrong: TimeBound(wrong, [], True)
        )
        plan = chosen(step)
        assert plan.budget_bytes is not None and plan.status == "feasible"
        assert plan.lower_bound == time_lower_bound(graph, costs, problem, plan.budget_bytes)
        assert "the plan is below a closer bound" in plan.message


def test_a_bound_that_the_clock_ended_says_so(step: Step, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "prove_time_lower_bound", lambda *_: TimeBound(1.0, [], True))
    plan = chosen(step)
    assert plan.lower_bound == 1.0
    assert plan.message.endswith("; the clock, not the work, ended the search for a bound")


def test_local_search_starts_from_seeds_where_the_captured_order_does_not_fit() -> None:
    problem = chain([6, 3, 3, 2, 2], [1, 3, 5, 4, 5])
    local_search = LocalSearch(problem)
    most, asked = local_search.measure(local_search.keep_all)[0], list[int]()

    def drafts(budget: int) -> list[list[int]]:
        asked.append(budget)
        return [[0, *local_search.keep_all]]

    assert local_search.improve({}, most, drafts).sequence == local_search.keep_all
    assert asked == []
    local_search.improve({}, most - 1, drafts)
    assert asked == [most - 1]


def test_a_message_tells_what_transfers_take_of_the_computations() -> None:
    away: Away = {1: [Offload(0)], 2: [Wait(0), Free(0)], 4: [Prefetch(0)], 6: COMES[1:]}
    for overhead, said in (
        (0.5, "wait for the link for 33.3% of the time, and transfers take 11.1% of it from them"),
        (0.0, "wait for the link for 37.5% of the time"),
    ):
        link = replace(LINK, overhead=overhead)
        made = Frontier("s", "m", "g", 9, 1.0, 3, 1.0, "", [], 0, link, [])
        assert room._describe_transfers(played(away, link), made).endswith(f"computations {said}")


def test_a_bound_that_no_plan_was_known_for_is_made_again_with_what_is_found(
    step: Step, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The better bound is told, and the further starts are searched from."""
    plan = chosen(step)
    graph, costs, problem = step
    captured = Candidate(run_actions(problem, [node.op for node in problem.nodes]), [], "plain")
    about = replace(load_strategy("rockmate").about, baseline=True)
    given = build_frontier(
        FrontierProblem(graph, "digest", costs, problem), about, [captured], captured
    )
    asked: list[float] = []
    searched: list[list[list[int]]] = []
    start = list(range(len(problem.nodes)))

    def proven(*words: object) -> TimeBound:
        asked.append(float(str(words[-1])))
        known = math.isfinite(asked[-1])
        return TimeBound(0.5 * asked[-1] if known else 1.0, [start] if known else [], False)

    def refined(*words: Any, **named: Any) -> ParetoPoint | None:
        searched.append(list(words[3]))
        return refine_plan.refine_point(*words, **named)

    monkeypatch.setattr(room, "prove_time_lower_bound", proven)
    monkeypatch.setattr(room, "refine_point", refined)
    found = room.select_plan(graph, costs, problem, given, "80%")[0]
    assert plan.time is not None and found.time is not None
    assert asked == [math.inf, found.time] and searched == [[], [start]]
    assert found.lower_bound == 0.5 * found.time and found.time <= plan.time
