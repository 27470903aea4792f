"""Real models over twenty budgets: less budget is never a higher peak nor a faster step."""

from __future__ import annotations

import dataclasses
from itertools import pairwise
from typing import Any

import pytest

from tests.stages.partition.steps import traced
from tests.stages.solve.blocks import solve_block
from tightfit.schemas.costs import Costs, op_cost_key
from tightfit.schemas.frontier import Frontier
from tightfit.schemas.graph.planning_graph import PlanningGraph
from tightfit.stages.combine.bounds.lower_bounds import time_lower_bound
from tightfit.stages.combine.frontier import FrontierProblem, build_frontier
from tightfit.stages.combine.local_search.search import AnnealedSequence, LocalSearch
from tightfit.stages.combine.lowering.blocks import run_actions
from tightfit.stages.combine.lowering.schedule import ScheduleLowering
from tightfit.stages.combine.memory_budget import baseline_bytes
from tightfit.stages.combine.refine_plan import PointSimulator, refine_point
from tightfit.stages.combine.select_plan import select_plan
from tightfit.stages.combine.strategies.strategy import Candidate, PlanningProblem, load_strategy
from tightfit.stages.partition.block_chain import partition_step
from tightfit.stages.simulate.liveness import simulate_executions
from tightfit.stages.simulate.planning_graph import build_planning_graph
from tightfit.stages.simulate.simulate import simulate
from tightfit.stages.solve.search import OptionGrid

GPT2 = {"layers": 2, "width": 64, "heads": 2, "vocabulary": 100, "batch": 2, "tokens": 16}
RESNET = {"name": "resnet18", "batch": 4, "size": 96}
BUDGETS = [f"{share}%" for share in range(100, 0, -5)]


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(("data.models:gpt2", {**GPT2, "dropout": 0.1}), marks=pytest.mark.long),
        ("data.models:resnet", RESNET),
    ],
    ids=["gpt2 with dropout", "resnet18"],
)
def traced_step(request: pytest.FixtureRequest) -> tuple[Any, Any, PlanningProblem]:
    """Graph, costs and the step with options that need no solver."""
    factory, arguments = request.param
    graph, costs = traced(factory, **arguments)
    problem, blocks = build_planning_graph(graph, costs), partition_step(graph, costs)
    options = {
        digest: solve_block(digest, block, "highs", OptionGrid(largest=0))
        for digest, block in blocks.distinct.items()
    }
    return graph, costs, PlanningProblem(problem, blocks, options)


@pytest.fixture(scope="module")
def step(traced_step: tuple[Any, Any, PlanningProblem]) -> PlanningProblem:
    return traced_step[-1]


@pytest.fixture(scope="module")
def model(
    traced_step: tuple[Any, Any, PlanningProblem],
) -> tuple[Any, Any, PlanningGraph, Frontier]:
    """Graph, costs, problem and frontier of `rockmate`."""
    graph, costs, step = traced_step
    chosen = load_strategy("rockmate")
    [everything] = load_strategy("keep_all").candidates(step)
    candidates = chosen.candidates(step)
    made = build_frontier(
        FrontierProblem(graph, "digest", costs, step.problem), chosen.about, candidates, everything
    )
    return graph, costs, step.problem, made


Figures = tuple[int, int, float]


def known(figures: list[tuple[int | None, int | None, float | None]]) -> list[Figures]:
    """Budgets, peaks and times, all of which must be there."""
    found = []
    for budget, peak, time in figures:
        assert budget is not None and peak is not None and time is not None
        found.append((budget, peak, time))
    return found


@pytest.mark.parametrize(
    "budgets", [BUDGETS[::4], pytest.param(BUDGETS, marks=pytest.mark.long)], ids=["5", "20"]
)
def test_a_plan_is_never_slower_than_the_points_within_its_budget(
    model: tuple[Any, Any, PlanningGraph, Frontier], budgets: list[str]
) -> None:
    graph, costs, _, made = model
    plans = []
    for share in budgets:
        plan, point, steps = select_plan(*model, share)
        if plan.feasible:
            played = simulate(graph, costs, steps)
            assert (played.peak, played.seconds) == (plan.peak, plan.time)
            assert point is not None and (point.peak, point.seconds) == (plan.peak, plan.time)
            plans.append(plan)
        else:
            assert steps == []
    assert len(plans) >= 0.4 * len(budgets)
    assert plans[-1].recomputed > 0
    faster = 0
    for budget, peak, time in known([(p.budget_bytes, p.peak, p.time) for p in plans]):
        within = made.within(budget)
        assert peak <= budget
        assert within is None or time <= within.seconds
        faster += within is None or time < within.seconds
    assert faster
    for more, less in pairwise(made.points):
        assert less.peak < more.peak and less.seconds > more.seconds


def test_the_search_is_given_a_bound_that_counts_what_it_counts(
    model: tuple[Any, Any, PlanningGraph, Frontier], monkeypatch: pytest.MonkeyPatch
) -> None:
    graph, costs, problem, made = model
    player = PointSimulator(graph, costs, ScheduleLowering(graph, problem))
    local_search, given = LocalSearch(problem, player.views), []

    def refine(
        _: LocalSearch, starts: list[list[int]], budget: int, least: float, *drafts: object
    ) -> AnnealedSequence:
        given.append(least)
        peak, seconds = local_search.measure(starts[0], budget)
        return AnnealedSequence(starts[0], peak, seconds, 0, budget)

    monkeypatch.setattr(LocalSearch, "refine", refine)
    for point in made.points[1::6]:
        found = refine_point(player, made, point.peak, [], least=point.seconds)
        assert found is not None
        sequence = player.opener.plain_positions(found.executions)
        searched = local_search.measure(sequence, point.peak)[1]
        assert found.seconds - searched == pytest.approx(point.seconds - given[-1], rel=1e-6)
        assert found.seconds > searched


def test_no_point_is_faster_than_its_bound(model: tuple[Any, Any, PlanningGraph, Frontier]) -> None:
    graph, costs, problem, made = model
    for point in made.points:
        least = time_lower_bound(graph, costs, problem, point.peak)
        assert 0 < least <= point.seconds * (1 + 1e-9)


def test_where_memory_is_no_matter_nothing_is_slower_than_the_plain_step(
    model: tuple[Any, Any, PlanningGraph, Frontier],
) -> None:
    graph, costs, problem, made = model
    assert made.points[0].seconds <= made.keep_all_seconds
    forms = {op_cost_key(graph, op, value) for op in graph.ops for value in op.in_place}
    rows = costs.rows.values()
    costs = Costs(
        [dataclasses.replace(row, seconds=2.0) if row.key in forms else row for row in rows],
        costs.device,
    )
    problem = build_planning_graph(graph, costs)
    everything = Candidate(run_actions(problem, [node.op for node in problem.nodes]), [], "plain")
    made = build_frontier(
        FrontierProblem(graph, "digest", costs, problem),
        load_strategy("rockmate").about,
        [],
        everything,
    )
    assert made.points[0].seconds == pytest.approx(made.keep_all_seconds, rel=1e-12)
    assert made.points[0].peak <= made.keep_all_peak


def test_a_budget_between_two_points_takes_the_lower_peak(
    model: tuple[Any, Any, PlanningGraph, Frontier],
) -> None:
    graph, costs, problem, made = model
    assert len({point.peak for point in made.points}) == len(made.points) > 3
    assert select_plan(graph, costs, problem, made, "none")[0].peak == made.points[0].peak
    there = made.points[1].peak
    assert made.within(there) == made.points[1]
    assert made.within(there - 1) == made.points[2]


def test_no_plan_of_the_strategy_itself_is_lost(
    step: PlanningProblem, model: tuple[Any, Any, PlanningGraph, Frontier]
) -> None:
    graph, costs, problem, made = model
    opener = ScheduleLowering(graph, problem)
    for candidate in load_strategy("rockmate").candidates(step):
        for in_place in (False, True):
            played = simulate(graph, costs, opener.schedule(candidate.executions, in_place))
            point = made.within(played.peak)
            assert point is not None
            assert point.seconds <= played.seconds * (1 + 1e-9)


def test_where_a_form_in_place_takes_longer_only_memory_asks_for_it(
    model: tuple[Any, Any, PlanningGraph, Frontier],
) -> None:
    graph, costs, _, _ = model
    forms = {op_cost_key(graph, op, value) for op in graph.ops for value in op.in_place}
    rows = costs.rows.values()
    slower = [
        dataclasses.replace(row, seconds=row.seconds * 1.5) if row.key in forms else row
        for row in rows
    ]
    costs = Costs(slower, costs.device)
    problem = build_planning_graph(graph, costs)
    everything = Candidate(run_actions(problem, [node.op for node in problem.nodes]), [], "plain")
    made = build_frontier(
        FrontierProblem(graph, "digest", costs, problem),
        load_strategy("rockmate").about,
        [],
        everything,
    )
    for point in made.points:
        position = {node.op: index for index, node in enumerate(problem.nodes)}
        sequence = [position[op] for op in point.executions]
        plain = simulate_executions(problem, sequence, in_place=False)
        chosen = simulate_executions(problem, sequence, point.in_place, point.in_place_threshold)
        overwriting = [(a, b) for a, b in zip(chosen, plain, strict=True) if a.reuse is not None]
        for run, otherwise in overwriting:
            assert run.seconds <= otherwise.seconds or otherwise.peak > point.in_place_threshold


def test_only_a_plan_of_the_strategy_itself_is_optimal_in_its_class(
    model: tuple[Any, Any, PlanningGraph, Frontier],
) -> None:
    for point in model[-1].points:
        fixed = baseline_bytes(model[0])
        plan, chosen, _ = select_plan(*model, f"{point.peak + fixed.bytes_before_step}B")
        assert chosen is not None and chosen.seconds <= point.seconds
        if plan.status != "optimal":
            own = chosen == point and not point.local_search and not point.in_place
            assert plan.optimal_in == (model[-1].optimal_in if own else "")
