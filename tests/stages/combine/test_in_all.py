"""Budgets on CUDA: they bound what PyTorch's allocator reserves."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.stages.combine.polish.test_optimum import chain
from tests.stages.replay.graphs import graph_of
from tightfit.schemas.costs import Allocations, Costs, Device
from tightfit.schemas.engines import HIGHS, Engine
from tightfit.schemas.errors import ConfigError
from tightfit.schemas.frontier import Frontier, Point
from tightfit.schemas.graph import Graph
from tightfit.schemas.plan import Plan, read_plan, write_plan
from tightfit.schemas.problem import Problem
from tightfit.stages.combine import in_all, refine
from tightfit.stages.combine.choose import choose
from tightfit.stages.combine.fixed import fixed_bytes
from tightfit.stages.combine.frontier import Subject, frontier
from tightfit.stages.combine.schedule.executions import runs
from tightfit.stages.combine.strategies.registry import strategy
from tightfit.stages.combine.strategies.strategy import Candidate
from tightfit.stages.replay.allocator import Taken
from tightfit.stages.replay.allocator_settings import MIB
from tightfit.stages.replay.condense import condense
from tightfit.stages.replay.gpu_memory import on_gpu
from tightfit.stages.replay.referee import replay

Model = tuple[Graph, Costs, Problem, Frontier]


def model_on(device: str, build: str = "", workspace: int = 0) -> Model:
    """A chain of layers that make 23 to 91 MiB each, planned on a device."""
    sizes = [size * MIB + 700 for size in (91, 47, 47, 23, 23, 61, 31)]
    graph, costs = graph_of(chain(sizes, [1, 3, 5, 4, 5, 2, 3]), False)
    rows = [
        replace(row, allocations=Allocations([row.peak], [workspace]))
        if workspace and row.target == "aten.op1.default"
        else row
        for row in costs.rows.values()
    ]
    graph = replace(graph, device=device)
    costs = Costs(rows, Device(device, "described", build, 0, "file"))
    problem = condense(graph, costs)
    captured = Candidate(runs(problem, [node.op for node in problem.nodes]), [], "plain")
    about = strategy("rockmate").about
    made = frontier(Subject(graph, "digest", costs, problem), about, [], captured)
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
        plan, point, steps = choose(*model, f"{share}%")
        if not plan.feasible:
            continue
        assert plan.gpu is not None and point is not None
        played = on_gpu(graph, costs, steps, plan.gpu.arena)
        gpu = plan.gpu
        assert Taken(gpu.requested, gpu.allocated, gpu.reserved) == played.most
        assert (gpu.renewed, gpu.workspaces) == (played.renewed, 0)
        assert gpu.reserved <= gpu.renewed <= total(plan)
        assert replay(graph, costs, steps).peak == plan.peak == point.peak
        assert plan.time is not None and plan.lower_bound is not None
        assert plan.lower_bound <= plan.time
        asked = choose(graph, cpu, problem, made, str(total(plan)))
        assert asked[0].time is not None and asked[0].time <= plan.time
        lowered += on_gpu(graph, costs, asked[2]).most.reserved > total(plan)
    assert lowered


def test_memory_is_taken_ahead_only_where_a_plan_reserves_too_much_without(model: Model) -> None:
    """Then less is reserved, and no more requested."""
    graph, costs, _, _ = model
    ahead = 0
    for share in range(90, 30, -3):
        plan, _, steps = choose(*model, f"{share}%")
        if plan.gpu is None or not plan.feasible:
            continue
        plain = on_gpu(graph, costs, steps)
        assert plan.gpu.requested == plain.most.requested
        if not plan.gpu.arena:
            assert plan.gpu.renewed == plain.renewed
            continue
        ahead += 1
        assert plan.gpu.renewed <= total(plan) < plain.renewed
        assert f"{plan.gpu.arena:,} of them at once, ahead of the first step" in plan.sentence
    assert ahead


def test_no_point_of_the_frontier_that_fits_is_faster(model: Model) -> None:
    graph, _, _, made = model
    for share in ("80%", "60%", "45%"):
        plan, _, _ = choose(*model, share)
        counted = in_all.InAll(player_of(model), fixed_bytes(graph))
        fitting = [point for point in made.points if counted.of(point) <= total(plan)]
        assert plan.feasible or not fitting
        assert all(plan.time is not None and plan.time <= point.seconds for point in fitting)


def player_of(model: Model) -> in_all.Player:
    from tightfit.stages.combine.schedule.opening import Opener

    graph, costs, problem, _ = model
    return in_all.Player(graph, costs, Opener(graph, problem))


def test_all_of_the_bytes_are_those_reserved_for_keeping_everything(model: Model) -> None:
    plan = choose(*model, "100%")[0]
    assert plan.gpu is not None
    assert plan.budget_total == plan.gpu.keep_all == plan.keep_all_total
    assert plan.gpu.keep_all > plan.fixed.there_before + plan.keep_all.peak
    assert plan.feasible


def test_the_smallest_budget_that_is_named_works_and_none_below(model: Model) -> None:
    refused = choose(*model, "60MiB")[0]
    assert refused.verdict == "infeasible" and refused.gpu is not None
    smallest = refused.smallest_budget
    assert smallest == refused.gpu.reserved
    assert f"{smallest:,} bytes" in refused.sentence
    assert choose(*model, str(smallest))[0].feasible
    least = choose(*model, str(smallest - 1))[0]
    assert not least.feasible or (least.gpu is not None and least.gpu.reserved < smallest)


def test_a_verdict_says_what_margin_the_allocator_needs(model: Model) -> None:
    plan = choose(*model, "70%")[0]
    assert plan.gpu is not None
    more = plan.gpu.reserved - plan.gpu.requested
    assert (
        f"; PyTorch's allocator reserves {plan.gpu.reserved:,} bytes of the GPU, {more:,} more "
        f"than the {plan.gpu.requested:,} that are requested of it, and CUDA's context comes on top"
    ) in plan.sentence


def test_the_workspaces_of_libraries_are_within_the_budget(model: Model) -> None:
    size = 40 * MIB
    kept = model_on("cuda", workspace=size)
    plain, plan = choose(*model, "100%")[0], choose(*kept, "100%")[0]
    assert plan.gpu is not None and plain.gpu is not None
    assert plan.gpu.workspaces == size and plan.gpu.keep_all == plain.gpu.keep_all + size
    assert f", {size:,} of them libraries' workspaces" in plan.sentence


def test_a_baseline_says_what_it_takes(model: Model) -> None:
    plan, _, steps = choose(*model, "none")
    assert plan.gpu is not None and plan.budget_total is None
    assert plan.gpu.reserved == on_gpu(*model[:2], steps).most.reserved
    assert plan.gpu.arena == 0


def test_settings_that_are_not_followed_are_refused() -> None:
    model = model_on("cuda", "2.13, PYTORCH_ALLOC_CONF=garbage_collection_threshold:0.5")
    with pytest.raises(ConfigError, match="have garbage_collection_threshold"):
        choose(*model, "50%")


def test_the_settings_of_the_costs_decide_what_is_reserved(model: Model) -> None:
    grown = model_on("cuda", "2.13, PYTORCH_ALLOC_CONF=expandable_segments:True")
    plain, plan = choose(*model, "60%")[0], choose(*grown, "60%")[0]
    assert plain.gpu is not None and plan.gpu is not None
    assert plan.gpu.keep_all != plain.gpu.keep_all
    assert plan.gpu.reserved <= total(plan)


def test_on_the_cpu_budgets_bound_requested_bytes(tmp_path: Path, model: Model) -> None:
    graph, costs, problem, made = model_on("cpu")
    plan = choose(graph, costs, problem, made, "50%")[0]
    assert plan.gpu is None and "allocator" not in plan.sentence
    assert plan.keep_all_total == plan.fixed.there_before + plan.keep_all.peak
    write_plan(tmp_path / "plan.json", plan)
    assert "gpu" not in json.loads((tmp_path / "plan.json").read_text())
    assert read_plan(tmp_path / "plan.json") == plan
    other = choose(*model, "70%")[0]
    write_plan(tmp_path / "plan.json", other)
    assert read_plan(tmp_path / "plan.json") == other


def test_a_search_that_finds_nothing_falls_back_to_the_frontier(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of its points it takes the fastest that fits."""
    graph, _, _, made = model
    counted = in_all.InAll(player_of(model), fixed_bytes(graph))
    limits: list[int] = []
    monkeypatch.setattr(in_all, "refined", lambda player, made, limit, **_: limits.append(limit))
    sizes = [counted.of(point) for point in made.points]
    for room in sizes:
        found = counted.fitted(made, made.points[0], room)
        best = min(
            (point for point, size in zip(made.points, sizes, strict=True) if size <= room),
            key=lambda point: point.seconds,
        )
        assert found == best
    assert counted.fitted(made, made.points[0], min(sizes) - 1) is None
    first = made.points[0]
    assert first.peak - (sizes[0] - (min(sizes) - 1)) == limits[-1]


def test_reserved_bytes_are_searched_for_by_the_engine_that_is_named(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    engines: set[Engine] = set()

    def refined(*given: Any, **named: Any) -> Point | None:
        engines.add(named.get("engine", HIGHS))
        return refine.refined(*given, **named)

    monkeypatch.setattr(in_all, "refined", refined)
    assert choose(*model, "60%", engine="cbc")[0].feasible
    assert engines == {"cbc"}


def test_nothing_is_searched_where_the_frontiers_plan_is_asked_for(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of its points it takes the fastest whose reserved bytes fit."""
    graph, _, _, made = model
    monkeypatch.setattr(in_all, "refined", None)
    counted = in_all.InAll(player_of(model), fixed_bytes(graph))
    lower = 0
    for share in range(95, 40, -5):
        plan, point, _ = choose(*model, f"{share}%", search=False)
        fitting = [each for each in made.points if counted.of(each) <= total(plan)]
        assert point == min(fitting, key=lambda each: each.seconds, default=None)
        asked = made.within(total(plan) - fixed_bytes(graph).there_before)
        lower += point is not asked
    assert lower
