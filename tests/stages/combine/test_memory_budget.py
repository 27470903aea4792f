"""Budgets on CUDA: they bound what PyTorch's allocator reserves."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.stages.combine.local_search.test_optimum import chain
from tests.stages.simulate.problem_graphs import graph_of
from tightfit.schemas.costs import Costs, OpAllocations, ProfileDevice
from tightfit.schemas.frontier import Frontier, ParetoPoint
from tightfit.schemas.graph.planning_graph import PlanningGraph
from tightfit.schemas.graph.training_graph import Graph
from tightfit.schemas.plan import Plan, read_plan, write_plan
from tightfit.stages.combine import memory_budget, refine_plan
from tightfit.stages.combine.frontier import FrontierProblem, build_frontier
from tightfit.stages.combine.lowering.blocks import run_actions
from tightfit.stages.combine.memory_budget import baseline_bytes
from tightfit.stages.combine.select_plan import select_plan
from tightfit.stages.combine.strategies.strategy import Candidate, load_strategy
from tightfit.stages.simulate.allocator_settings import MIB
from tightfit.stages.simulate.caching_allocator import AllocatorBytes
from tightfit.stages.simulate.cuda_memory import simulate_cuda_memory
from tightfit.stages.simulate.planning_graph import build_planning_graph
from tightfit.stages.simulate.simulate import simulate
from tightfit.util.errors import ConfigError
from tightfit.util.solver_engines import HIGHS_ENGINE, SolverEngine

Model = tuple[Graph, Costs, PlanningGraph, Frontier]


def model_on(device: str, build: str = "", workspace: int = 0) -> Model:
    """A chain of layers that make 23 to 91 MiB each, planned on a device."""
    sizes = [size * MIB + 700 for size in (91, 47, 47, 23, 23, 61, 31)]
    graph, costs = graph_of(chain(sizes, [1, 3, 5, 4, 5, 2, 3]), False)
    rows = [
        replace(row, allocations=OpAllocations([row.peak], [workspace]))
        if workspace and row.target == "aten.op1.default"
        else row
        for row in costs.rows.values()
    ]
    graph = replace(graph, device=device)
    costs = Costs(rows, ProfileDevice(device, "described", build, 0, "file"))
    problem = build_planning_graph(graph, costs)
    captured = Candidate(run_actions(problem, [node.op for node in problem.nodes]), [], "plain")
    about = load_strategy("rockmate").about
    made = build_frontier(FrontierProblem(graph, "digest", costs, problem), about, [], captured)
    return graph, costs, problem, made


@pytest.fixture(scope="module")
def model() -> Model:
    return model_on("cuda")


def total(plan: Plan) -> int:
    assert plan.budget_total is not None
    return plan.budget_total


def test_what_is_reserved_is_within_the_budget_where_what_is_requested_is_not_enough(
    model: Model,
) -> None:
    """Some of the plans that a budget of requested bytes takes reserve more than it."""
    graph, costs, problem, made = model
    cpu = Costs(costs.rows.values(), replace(costs.device, type="cpu"))
    lowered = 0
    for share in range(100, 20, -5):
        plan, point, steps = select_plan(*model, f"{share}%")
        if not plan.feasible:
            continue
        assert plan.gpu is not None and point is not None
        played = simulate_cuda_memory(graph, costs, steps, plan.gpu.arena)
        gpu = plan.gpu
        assert AllocatorBytes(gpu.requested, gpu.allocated, gpu.reserved) == played.most
        assert (gpu.steady_reserved, gpu.workspaces) == (played.renewed, 0)
        assert gpu.reserved <= gpu.steady_reserved <= total(plan)
        assert simulate(graph, costs, steps).peak == plan.peak == point.peak
        assert plan.time is not None and plan.lower_bound is not None
        assert plan.lower_bound <= plan.time
        asked = select_plan(graph, cpu, problem, made, str(total(plan)))
        assert asked[0].time is not None and asked[0].time <= plan.time
        lowered += simulate_cuda_memory(graph, costs, asked[2]).most.reserved > total(plan)
    assert lowered


def test_memory_is_taken_ahead_only_where_a_plan_reserves_too_much_without(model: Model) -> None:
    """Then less is reserved, and no more requested."""
    graph, costs, _, _ = model
    ahead = 0
    for share in range(90, 30, -3):
        plan, _, steps = select_plan(*model, f"{share}%")
        if plan.gpu is None or not plan.feasible:
            continue
        plain = simulate_cuda_memory(graph, costs, steps)
        assert plan.gpu.requested == plain.most.requested
        if not plan.gpu.arena:
            assert plan.gpu.steady_reserved == plain.renewed
            continue
        ahead += 1
        assert plan.gpu.steady_reserved <= total(plan) < plain.renewed
        assert f"{plan.gpu.arena:,} of them at once, ahead of the first step" in plan.message
    assert ahead


def test_no_point_of_the_frontier_that_fits_is_faster(model: Model) -> None:
    graph, _, _, made = model
    for share in ("80%", "60%", "45%"):
        plan, _, _ = select_plan(*model, share)
        counted = memory_budget.BudgetAccounting(player_of(model), baseline_bytes(graph))
        fitting = [point for point in made.points if counted.of(point) <= total(plan)]
        assert plan.feasible or not fitting
        assert all(plan.time is not None and plan.time <= point.seconds for point in fitting)


def player_of(model: Model) -> memory_budget.PointSimulator:
    from tightfit.stages.combine.lowering.schedule import ScheduleLowering

    graph, costs, problem, _ = model
    return memory_budget.PointSimulator(graph, costs, ScheduleLowering(graph, problem))


def test_all_of_the_bytes_are_those_reserved_for_keeping_everything(model: Model) -> None:
    plan = select_plan(*model, "100%")[0]
    assert plan.gpu is not None
    assert plan.budget_total == plan.gpu.keep_all == plan.keep_all_total
    assert plan.gpu.keep_all > plan.baseline.bytes_before_step + plan.keep_all.peak
    assert plan.feasible


def test_the_smallest_budget_that_is_named_works_and_none_below(model: Model) -> None:
    refused = select_plan(*model, "60MiB")[0]
    assert refused.status == "infeasible" and refused.gpu is not None
    smallest = refused.smallest_budget
    assert smallest == refused.gpu.reserved
    assert f"{smallest:,} bytes" in refused.message
    assert select_plan(*model, str(smallest))[0].feasible
    least = select_plan(*model, str(smallest - 1))[0]
    assert not least.feasible or (least.gpu is not None and least.gpu.reserved < smallest)


def test_a_message_says_what_margin_the_allocator_needs(model: Model) -> None:
    plan = select_plan(*model, "70%")[0]
    assert plan.gpu is not None
    more = plan.gpu.reserved - plan.gpu.requested
    assert (
        f"; PyTorch's allocator reserves {plan.gpu.reserved:,} bytes of the GPU, {more:,} more "
        f"than the {plan.gpu.requested:,} that are requested of it, and CUDA's context comes on top"
    ) in plan.message


def test_the_workspaces_of_libraries_are_within_the_budget(model: Model) -> None:
    size = 40 * MIB
    kept = model_on("cuda", workspace=size)
    plain, plan = select_plan(*model, "100%")[0], select_plan(*kept, "100%")[0]
    assert plan.gpu is not None and plain.gpu is not None
    assert plan.gpu.workspaces == size and plan.gpu.keep_all == plain.gpu.keep_all + size
    assert f", {size:,} of them libraries' workspaces" in plan.message


def test_a_baseline_says_what_it_takes(model: Model) -> None:
    plan, _, steps = select_plan(*model, "none")
    assert plan.gpu is not None and plan.budget_total is None
    assert plan.gpu.reserved == simulate_cuda_memory(*model[:2], steps).most.reserved
    assert plan.gpu.arena == 0


def test_settings_that_are_not_followed_are_refused() -> None:
    model = model_on("cuda", "2.13, PYTORCH_ALLOC_CONF=garbage_collection_threshold:0.5")
    with pytest.raises(ConfigError, match="have garbage_collection_threshold"):
        select_plan(*model, "50%")


def test_the_settings_of_the_costs_decide_what_is_reserved(model: Model) -> None:
    grown = model_on("cuda", "2.13, PYTORCH_ALLOC_CONF=expandable_segments:True")
    plain, plan = select_plan(*model, "60%")[0], select_plan(*grown, "60%")[0]
    assert plain.gpu is not None and plan.gpu is not None
    assert plan.gpu.keep_all != plain.gpu.keep_all
    assert plan.gpu.reserved <= total(plan)


def test_on_the_cpu_budgets_bound_requested_bytes(tmp_path: Path, model: Model) -> None:
    graph, costs, problem, made = model_on("cpu")
    plan = select_plan(graph, costs, problem, made, "50%")[0]
    assert plan.gpu is None and "allocator" not in plan.message
    assert plan.keep_all_total == plan.baseline.bytes_before_step + plan.keep_all.peak
    write_plan(tmp_path / "plan.json", plan)
    assert "gpu" not in json.loads((tmp_path / "plan.json").read_text())
    assert read_plan(tmp_path / "plan.json") == plan
    other = select_plan(*model, "70%")[0]
    write_plan(tmp_path / "plan.json", other)
    assert read_plan(tmp_path / "plan.json") == other


def test_a_search_that_finds_nothing_falls_back_to_the_frontier(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of its points it takes the fastest that fits."""
    graph, _, _, made = model
    counted = memory_budget.BudgetAccounting(player_of(model), baseline_bytes(graph))
    limits: list[int] = []
    monkeypatch.setattr(
        memory_budget, "refine_point", lambda player, made, limit, **_: limits.append(limit)
    )
    sizes = [counted.of(point) for point in made.points]
    for room in sizes:
        found = counted.search_fitting_point(made, made.points[0], room)
        best = min(
            (point for point, size in zip(made.points, sizes, strict=True) if size <= room),
            key=lambda point: point.seconds,
        )
        assert found == best
    assert counted.search_fitting_point(made, made.points[0], min(sizes) - 1) is None
    first = made.points[0]
    assert first.peak - (sizes[0] - (min(sizes) - 1)) == limits[-1]


def test_reserved_bytes_are_searched_for_by_the_engine_that_is_named(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    engines: set[SolverEngine] = set()

    def refined(*given: Any, **named: Any) -> ParetoPoint | None:
        engines.add(named.get("engine", HIGHS_ENGINE))
        return refine_plan.refine_point(*given, **named)

    monkeypatch.setattr(memory_budget, "refine_point", refined)
    assert select_plan(*model, "60%", engine="cbc")[0].feasible
    assert engines == {"cbc"}


def test_nothing_is_searched_where_the_frontiers_plan_is_asked_for(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of its points it takes the fastest whose reserved bytes fit."""
    graph, _, _, made = model
    monkeypatch.setattr(memory_budget, "refine_point", None)
    counted = memory_budget.BudgetAccounting(player_of(model), baseline_bytes(graph))
    lower = 0
    for share in range(95, 40, -5):
        plan, point, _ = select_plan(*model, f"{share}%", search=False)
        fitting = [each for each in made.points if counted.of(each) <= total(plan)]
        assert point == min(fitting, key=lambda each: each.seconds, default=None)
        asked = made.within(total(plan) - baseline_bytes(graph).bytes_before_step)
        lower += point is not asked
    assert lower
