"""Plans with transfers: never slower than without, at most what they say, and compared with all
ways to send what waits on tiny steps."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations, combinations_with_replacement, pairwise, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.stages.combine.problems import problems, two_layers
from tests.stages.simulate.problem_graphs import graph_of
from tightfit.schemas.actions import (
    Action,
    Compute,
    ComputeLoss,
    Free,
    FreeHostCopy,
    Offload,
    PassGradient,
    Prefetch,
    Wait,
)
from tightfit.schemas.costs import Costs
from tightfit.schemas.frontier import Frontier
from tightfit.schemas.graph.planning_graph import InPlaceVariant, PlanningGraph
from tightfit.schemas.graph.training_graph import Graph
from tightfit.schemas.link import HostLink
from tightfit.schemas.schedule import ScheduleStep
from tightfit.stages.combine.activation_offload.bound import TransferBoundSolver
from tightfit.stages.combine.activation_offload.placement import TransferPlacer, offloadable_values
from tightfit.stages.combine.activation_offload.search import (
    PRICE_EFFORT,
    SWEEP_EFFORT,
    TRANSFER_BUDGET_INTERVAL,
    SearchEffort,
    TransferSearch,
    _sweep_effort,
)
from tightfit.stages.combine.bounds.cut_program import total_node_seconds
from tightfit.stages.combine.bounds.lower_bounds import peak_lower_bound
from tightfit.stages.combine.bounds.transfer_bound import time_lower_bound_with_transfers
from tightfit.stages.combine.frontier import FrontierProblem, build_frontier
from tightfit.stages.combine.local_search.search import budget_grid
from tightfit.stages.combine.local_search.views import build_view_times
from tightfit.stages.combine.lowering.blocks import run_actions
from tightfit.stages.combine.lowering.schedule import ScheduleLowering
from tightfit.stages.combine.milp import solve_milp
from tightfit.stages.combine.select_plan import select_plan
from tightfit.stages.combine.strategies.strategy import Candidate
from tightfit.stages.simulate.liveness import simulate_executions
from tightfit.stages.simulate.planning_graph import build_planning_graph
from tightfit.stages.simulate.simulate import SimulationResult, simulate
from tightfit.util.errors import ScheduleError
from tightfit.util.strategies import StrategyInfo

LINKS = st.builds(
    HostLink,
    bandwidth=st.sampled_from([0.5, 2.0, 8.0, math.inf]),
    latency=st.sampled_from([0.0, 0.25]),
    shared=st.booleans(),
    device=st.just("cpu"),
    overhead=st.sampled_from([0.0, 0.125]),
    overhead_per_byte=st.sampled_from([0.0, 0.0625]),
)


def step_of(
    problem: PlanningGraph, view_seconds: float = 0.0, shared: bool = False
) -> tuple[Graph, Costs, PlanningGraph]:
    graph, costs = graph_of(problem, view_seconds > 0, view_seconds, shared)
    return graph, costs, build_planning_graph(graph, costs)


def played(
    graph: Graph,
    costs: Costs,
    problem: PlanningGraph,
    actions: list[Action],
    link: HostLink,
    room: int,
) -> SimulationResult:
    steps = ScheduleLowering(graph, problem).of_actions(actions, in_place=True, ceiling=room)
    return simulate(graph, costs, steps, link=link)


def budgets(problem: PlanningGraph) -> list[int]:
    """Some budgets between what one op needs and what all takes."""
    line = [run.peak for run in simulate_executions(problem, range(len(problem.nodes)), False)]
    return sorted({max(line), max(line) * 3 // 4, max(line) // 2})


@settings(deadline=None, max_examples=15)
@given(problems(forward=4), LINKS)
def test_plans_are_what_the_referee_says_and_no_slower_than_without(
    made: PlanningGraph, link: HostLink
) -> None:
    graph, costs, problem = step_of(made)
    linker = TransferSearch(problem, link, offloadable_values(graph, problem))
    captured = list(range(len(problem.nodes)))
    for budget in budgets(problem):
        placed = linker.plan(budget, [captured])
        if placed is None:
            continue
        found = played(graph, costs, problem, linker.placer.actions(placed), link, budget)
        assert found.peak <= budget
        assert found.seconds == pytest.approx(placed.seconds)
        assert placed.seconds >= bound_of(graph, problem, link, budget) * (1 - 1e-9)


def bound_of(graph: Graph, problem: PlanningGraph, link: HostLink, budget: int) -> float:
    found = TransferBoundSolver(problem, link, offloadable_values(graph, problem)).bound(budget)
    assert not found.clock
    assert found.seconds >= time_lower_bound_with_transfers(problem, budget, link)
    return found.seconds


def ways(graph: Graph, problem: PlanningGraph, most: int) -> Iterator[list[Action]]:
    """The captured order with up to so many storages sent, in all places and orders, once each."""
    values = offloadable_values(graph, problem)
    plain: list[Action] = list(run_actions(problem, [node.op for node in problem.nodes]))
    used = {
        storage: [i for i, n in enumerate(problem.nodes) if storage in (*n.inputs, *n.outputs)]
        for storage in values
    }
    gaps = [(s, a, b) for s, u in used.items() for a, b in pairwise(u) if b > a + 1]
    for chosen in product([False, True], repeat=min(len(gaps), most)):
        picked = [gap for gap, taken in zip(gaps, chosen, strict=False) if taken]
        places = [
            [*combinations_with_replacement(range(first + 1, last + 1), 3)]
            for _, first, last in picked
        ]
        for spots in product(*places):
            ahead: dict[int, list[Action]] = {}
            for (storage, _, _), (sent, freed, back) in zip(picked, spots, strict=True):
                value = values[storage]
                for place, action in (
                    (sent, Offload(value)),
                    (freed, Free(value)),
                    (back, Prefetch(value)),
                ):
                    ahead.setdefault(place, []).append(action)
            order = {Offload: 0, Free: 1, Prefetch: 2}
            steps: list[Action] = []
            for place, run in enumerate(plain):
                steps += sorted(ahead.get(place, []), key=lambda action: order[type(action)])
                steps.append(run)
            yield steps


@settings(deadline=None, max_examples=20)
@given(problems(forward=3), LINKS)
def test_no_way_to_send_beats_the_bound(made: PlanningGraph, link: HostLink) -> None:
    graph, costs, problem = step_of(made)
    placer = TransferPlacer(problem, link, offloadable_values(graph, problem))
    captured = range(len(problem.nodes))
    best = {budget: math.inf for budget in budgets(problem)}
    for index, actions in enumerate(ways(graph, problem, 2)):
        if index == 150:
            break
        try:
            found = played(graph, costs, problem, actions, link, 0)
        except ScheduleError:
            continue
        for budget in best:
            if found.peak <= budget:
                best[budget] = min(best[budget], found.seconds)
    for budget, seconds in best.items():
        assert seconds >= bound_of(graph, problem, link, budget) * (1 - 1e-9)
        if link.bandwidth == math.inf and link.latency == 0 and seconds < math.inf:
            placed = placer.place(captured, None, budget)
            assert placed is not None and placed.waited == pytest.approx(0)


@settings(deadline=None, max_examples=12)
@given(problems(forward=3), LINKS)
def test_no_way_to_send_beats_what_several_moments_say(made: PlanningGraph, link: HostLink) -> None:
    """All pairs of moments, which the bound may not come to, and all of them together."""
    graph, costs, problem = step_of(made)
    moments = TransferBoundSolver(problem, link, offloadable_values(graph, problem))
    captured = [run.peak for run in simulate_executions(problem, range(len(problem.nodes)), False)]
    some = [*combinations(moments.chain, 2), tuple(moments.chain)]
    for index, actions in enumerate(ways(graph, problem, 2)):
        if index == 40:
            break
        try:
            found = played(graph, costs, problem, actions, link, 0)
        except ScheduleError:
            continue
        for each in some if index % 8 == 0 or found.peak < max(captured) else ():
            _, arrays = moments._program(each, found.peak)
            least = solve_milp(arrays, moments.limits).bound * total_node_seconds(problem)
            assert found.seconds >= least * (1 - 1e-9)


def test_what_is_overwritten_may_come_back() -> None:
    made = two_layers()
    first = replace(made.nodes[0], seconds=10.0)
    over = replace(made.nodes[1], seconds=8.0, reuses=[InPlaceVariant(0, 1.0, 0)])
    graph, costs, problem = step_of(replace(made, nodes=[first, over, *made.nodes[2:]]))
    link = HostLink(100.0, 0.0, shared=False, device="cpu")
    ahead: list[Action] = [Compute(0), Offload(0), Wait(0), Compute(1, in_place=0), ComputeLoss(2)]
    behind: list[Action] = [
        Prefetch(0),
        Wait(0),
        FreeHostCopy(0),
        Compute(3),
        Free(0),
        PassGradient(3),
    ]
    found = simulate(
        graph, costs, [ScheduleStep(action) for action in (*ahead, *behind)], link=link
    )
    assert bound_of(graph, problem, link, found.peak) <= found.seconds < 13


def both(
    made: PlanningGraph, link: HostLink
) -> tuple[Frontier, Frontier, Graph, Costs, PlanningGraph]:
    """The frontiers of a step without and with a link."""
    graph, costs, problem = step_of(made)
    keep_all = Candidate(
        run_actions(problem, [node.op for node in problem.nodes]), [], "captured order"
    )
    about = StrategyInfo("strategy", "")
    plain = build_frontier(FrontierProblem(graph, "", costs, problem), about, [keep_all], keep_all)
    linked = build_frontier(
        FrontierProblem(graph, "", costs, problem, link), about, [keep_all], keep_all
    )
    return plain, linked, graph, costs, problem


@settings(deadline=None, max_examples=6)
@given(problems(forward=4, alternatives=True), LINKS)
def test_a_frontier_with_a_link_is_never_slower(made: PlanningGraph, link: HostLink) -> None:
    plain, linked, graph, costs, problem = both(made, link)
    for point in plain.points:
        other = linked.within(point.peak)
        assert other is not None and other.seconds <= point.seconds
    assert linked.without_transfers == plain.points
    budget = str(sum(costs_before(graph)) + plain.points[0].peak * 2 // 3)
    without, _, _ = select_plan(graph, costs, problem, plain, budget)
    found, _, _ = select_plan(graph, costs, problem, linked, budget)
    if without.time is not None:
        assert found.time is not None and found.time <= without.time
    if found.time is not None and found.lower_bound is not None:
        assert found.lower_bound <= found.time


def costs_before(graph: Graph) -> list[int]:
    """The bytes that are there before the step."""
    return [graph.storages[storage] for storage in graph.baseline_storages()]


@settings(deadline=None, max_examples=5)
@given(problems(forward=3, alternatives=True))
def test_a_link_without_bandwidth_changes_nothing(made: PlanningGraph) -> None:
    plain, linked, graph, costs, problem = both(made, HostLink(0.0, device="cpu"))
    assert replace(linked, link=None) == plain
    budget = str(sum(costs_before(graph)) + plain.points[0].peak * 2 // 3)
    assert select_plan(graph, costs, problem, plain, budget) == select_plan(
        graph, costs, problem, linked, budget
    )


@settings(deadline=None, max_examples=8)
@given(problems(forward=4), st.sampled_from([0.0, 1.0]), st.booleans())
def test_nobody_waits_for_a_link_that_takes_no_time(
    made: PlanningGraph, view_seconds: float, shared: bool
) -> None:
    graph, costs, problem = step_of(made, view_seconds, shared)
    link = HostLink(math.inf, 0.0, device="cpu")
    views = build_view_times(graph, costs, problem)
    linker = TransferSearch(problem, link, offloadable_values(graph, problem), views=views)
    once = sum(node.seconds for node in problem.nodes) + views.once(problem)
    captured = list(range(len(problem.nodes)))
    for budget in budgets(problem):
        placed = linker.placer.place(captured, None, budget)
        found = linker.plan(budget, [captured])
        if placed is not None:
            assert found is not None and found.seconds <= placed.seconds + 1e-9
            assert found.waited == pytest.approx(0)
            actions = linker.placer.actions(found)
            assert played(graph, costs, problem, actions, link, budget).seconds <= once + 1e-9


@settings(deadline=None, max_examples=6)
@given(problems(forward=5), LINKS)
def test_every_point_of_the_grid_keeps_the_invariants(made: PlanningGraph, link: HostLink) -> None:
    plain, linked, graph, costs, problem = both(made, link)
    opener = ScheduleLowering(graph, problem)
    for point in linked.points:
        found = simulate(graph, costs, opener.opened(point), link=link)
        assert (found.peak, found.seconds) == (point.peak, point.seconds)
        without = plain.within(point.peak)
        assert without is None or point.seconds <= without.seconds
    for larger, smaller in pairwise(linked.points):
        assert larger.peak > smaller.peak and larger.seconds < smaller.seconds
    fastest = linked.points[0].seconds
    if link.bandwidth == math.inf and link.latency == 0:
        placer = TransferPlacer(problem, link, offloadable_values(graph, problem))
        captured = range(len(problem.nodes))
        for budget in budget_grid(plain.points[0].peak, peak_lower_bound(problem))[
            1::TRANSFER_BUDGET_INTERVAL
        ]:
            placed = placer.place(captured, None, budget)
            if placed is not None and placed.waited == 0:
                best = linked.within(budget)
                assert best is not None and best.seconds <= placed.seconds + 1e-9
    assert fastest <= linked.keep_all_seconds


def test_the_grid_is_searched_with_the_clocks(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[SearchEffort] = []

    def plan(
        self: TransferSearch, budget: int, starts: object, effort: SearchEffort, linked: object
    ) -> None:
        tried.append(effort)

    monkeypatch.setattr(TransferSearch, "plan", plan)
    graph, _, problem = step_of(two_layers())
    linker = TransferSearch(
        problem, HostLink(8.0, device="cpu"), offloadable_values(graph, problem)
    )
    assert list(linker.sweep(100, 20, lambda budget: range(len(problem.nodes)), 1)) == []
    assert tried and all(effort == SWEEP_EFFORT for effort in tried)
    assert _sweep_effort(2000).moves == 50 and _sweep_effort(5000) == PRICE_EFFORT
