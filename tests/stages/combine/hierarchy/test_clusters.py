"""Options of clusters and plans that choose among them, against what can be checked by running."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.stages.combine.hierarchy.trees import rows_of
from tests.stages.partition.steps import random_steps, traced
from tightfit.schemas.graph.planning_graph import PlanningGraph
from tightfit.schemas.hierarchy import Hierarchy
from tightfit.stages.combine.hierarchy.cluster_options import (
    ClusterGrid,
    ClusterOptionFinder,
    option_cost,
    pareto_options,
    select_spread_options,
    treewidth_options,
)
from tightfit.stages.combine.hierarchy.clusters import (
    Cluster,
    ClusterOption,
    build_clusters,
    isolate_cluster,
    lasting_storages,
)
from tightfit.stages.combine.hierarchy.planner import ClusterPlan, plan_clusters
from tightfit.stages.combine.lowering.schedule import ScheduleLowering
from tightfit.stages.combine.milp import SolverLimits
from tightfit.stages.partition.gradient_flow import GradientFlow
from tightfit.stages.partition.hierarchy.arrays import HierarchyLimits as Sizes
from tightfit.stages.partition.hierarchy.build import build_hierarchy
from tightfit.stages.simulate.liveness import INFINITE_IN_PLACE_THRESHOLD, simulate_executions
from tightfit.stages.simulate.planning_graph import build_planning_graph
from tightfit.stages.simulate.simulate import simulate
from tightfit.util.errors import ArtifactError

GRID = ClusterGrid(peaks=2, saves=2, options=3, limits=SolverLimits(gap=1e-3, nodes=20, checks=100))
SIZES = st.lists(st.integers(1, 4), min_size=1, max_size=2)


def peak_and_seconds(problem: PlanningGraph, sequence: list[int]) -> tuple[int, float]:
    played = simulate_executions(
        problem, sequence, in_place=True, ceiling=INFINITE_IN_PLACE_THRESHOLD
    )
    return max(run.peak for run in played), sum(run.seconds for run in played)


def runs_all(problem: PlanningGraph, plan: ClusterPlan) -> None:
    """Every node runs, what may not repeat runs once, and each read is of what is there."""
    assert set(plan.sequence) == set(range(len(problem.nodes)))
    for position, node in enumerate(problem.nodes):
        assert node.repeatable or plan.sequence.count(position) == 1


@settings(deadline=None, max_examples=25)
@given(random_steps(most=8), SIZES)
def test_plans_can_run_within_the_bytes_they_tell(facts: GradientFlow, sizes: list[int]) -> None:
    problem = facts.problem
    plans = plan_clusters(problem, rows_of(problem, sizes), GRID)
    kept, again, *others = plans
    assert (kept.origin, again.origin) == ("every cluster kept", "every cluster again")
    assert kept.sequence == list(range(len(problem.nodes)))
    figures = []
    for plan in plans:
        runs_all(problem, plan)
        figures.append(peak_and_seconds(problem, plan.sequence))
    for plan, (peak, _) in zip(others, figures[2:], strict=True):
        found = re.search(r"within (\d+) bytes", plan.origin)
        assert found is not None and peak <= int(found[1])


@settings(deadline=None, max_examples=25)
@given(random_steps(most=8), SIZES)
def test_options_are_worth_what_they_cost(facts: GradientFlow, sizes: list[int]) -> None:
    problem = facts.problem
    options = ClusterOptionFinder(GRID)
    for member in build_clusters(problem, rows_of(problem, sizes)).members:
        found = options.of(problem, member)
        assert found[0] == ClusterOption(member.forward, member.backward)
        alone, inner = isolate_cluster(problem, member, lasting_storages(problem))
        number = {node: place for place, node in enumerate(_nodes(problem, member))}
        own = [
            ClusterOption(
                tuple(number[node] for node in option.forward),
                tuple(number[node] for node in option.backward),
            )
            for option in found
        ]
        assert own[0] == ClusterOption(inner.forward, inner.backward)
        assert pareto_options(alone, own) == own
        for option in own:
            assert {*option.forward, alone.loss, *option.backward} == set(range(len(alone.nodes)))
            assert set(option.forward) == set(inner.forward)
        assert option_cost(alone, own[0]).seconds == min(
            option_cost(alone, option).seconds for option in own
        )


def _nodes(problem: PlanningGraph, cluster: Cluster) -> list[int]:
    return [*cluster.forward, problem.loss, *cluster.backward]


@pytest.mark.long
def test_equal_clusters_are_solved_once() -> None:
    sizes = {"layers": 3, "width": 32, "heads": 2, "vocabulary": 50, "batch": 1, "tokens": 8}
    graph, costs = traced("data.models:gpt2", **sizes)
    problem = build_planning_graph(graph, costs)
    members = build_clusters(problem, build_hierarchy(graph, costs, Sizes(12, 6, 12))).members
    options = ClusterOptionFinder(replace(GRID, peaks=1, saves=1))
    for member in members:
        options.of(problem, member)
    assert len(options.known) < len([c for m in members for c in (m, *m.members)])


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("factory", "arguments"),
    [
        ("data.zoo_graphs:unet", {"channels": 4, "levels": 3, "size": 16}),
        ("data.zoo_graphs:siamese", {"size": 32, "batch": 2}),
    ],
)
def test_the_referee_lets_plans_of_graphs_that_are_no_sequence_pass(
    factory: str, arguments: dict[str, int]
) -> None:
    graph, costs = traced(factory, **arguments)
    problem = build_planning_graph(graph, costs)
    hierarchy = build_hierarchy(graph, costs, Sizes(nodes=12, clusters=6, top=12))
    opener = ScheduleLowering(graph, problem)
    plans = plan_clusters(problem, hierarchy, GRID)
    peaks = []
    for plan in plans:
        ops = [problem.nodes[node].op for node in plan.sequence]
        peaks.append(simulate(graph, costs, opener.schedule(ops, False)).peak)
    assert min(peaks) < peaks[0]


def test_a_hierarchy_of_another_step_is_refused() -> None:
    graph, costs = traced("data.zoo_graphs:unet", channels=4, levels=2, size=8)
    problem = build_planning_graph(graph, costs)
    hierarchy = build_hierarchy(graph, costs)
    assert isinstance(hierarchy, Hierarchy)
    other = replace(hierarchy, backward=hierarchy.backward[:-1], places=hierarchy.places[:-1])
    with pytest.raises(ArtifactError, match="the hierarchy is that of another graph"):
        build_clusters(problem, other)


def test_a_few_of_many_options_are_spread_over_what_they_keep() -> None:
    assert select_spread_options([9, 8, 7, 6, 5, 4, 3, 2, 1], 3) == [0, 4, 8]
    assert select_spread_options([9, 8, 7, 6, 5, 4, 3, 2, 1], 2) == [0, 8]
    assert select_spread_options([900, 12, 11, 10, 9, 500, 8, 7], 3) == [0, 5, 7]
    assert select_spread_options([900, 100, 90, 80, 3, 2, 1, 0], 4) == [0, 1, 3, 7]
    assert select_spread_options([4, 4, 4, 4, 4], 3) == [0, 2, 4]
    assert select_spread_options([2, 1], 5) == [0, 1]


@settings(deadline=None, max_examples=25)
@given(random_steps(most=8), SIZES, st.integers(1, 4))
def test_a_tree_decomposition_gives_options_that_can_run(
    facts: GradientFlow, sizes: list[int], count: int
) -> None:
    problem = facts.problem
    for member in build_clusters(problem, rows_of(problem, sizes)).members:
        alone, inner = isolate_cluster(problem, member, lasting_storages(problem))
        for option in treewidth_options(alone, count):
            assert set(option.forward) == set(inner.forward)
            order = [*option.forward, alone.loss, *option.backward]
            runs_all(alone, ClusterPlan(order, ""))
            there = {s for s, stored in enumerate(alone.storages) if stored.producer < 0}
            for run in simulate_executions(alone, order, in_place=False):
                assert there.issuperset(run.form.inputs)
                there = there.union(run.form.outputs).difference(run.drops)


def test_a_large_cluster_is_not_decomposed(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, costs = traced("data.zoo_graphs:unet", channels=4, levels=2, size=8)
    problem = build_planning_graph(graph, costs)
    [whole] = build_clusters(problem, rows_of(problem, [999])).members
    alone, _ = isolate_cluster(problem, whole, lasting_storages(problem))
    assert list(treewidth_options(alone, 2))
    monkeypatch.setattr(
        "tightfit.stages.combine.hierarchy.cluster_options.MAX_TREEWIDTH_NODES",
        len(alone.nodes) - 1,
    )
    assert not list(treewidth_options(alone, 2))
