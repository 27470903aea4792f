"""Clusters in a row, run by the dynamic program, against the simulator and the integer program."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.stages.combine.hierarchy.trees import rows_of
from tests.stages.combine.local_search.test_optimum import chain
from tests.stages.partition.steps import random_steps, traced
from tightfit.schemas.graph.planning_graph import PlanningGraph
from tightfit.stages.combine.checkmate.milp import (
    CheckmateMilp,
    executed_nodes,
    keep_all_runs,
    total_run_seconds,
)
from tightfit.stages.combine.checkmate.tasks import TaskGraph, build_node_tasks, forward_stages
from tightfit.stages.combine.hierarchy.cluster_chain import build_cluster_chain, plan_cluster_chain
from tightfit.stages.combine.hierarchy.cluster_options import ClusterGrid, ClusterOptionFinder
from tightfit.stages.combine.hierarchy.clusters import (
    build_cluster_tasks,
    build_clusters,
    lasting_storages,
)
from tightfit.stages.combine.hierarchy.planner import plan_clusters
from tightfit.stages.combine.lowering.schedule import ScheduleLowering
from tightfit.stages.combine.milp import SolverLimits
from tightfit.stages.partition.gradient_flow import GradientFlow
from tightfit.stages.partition.hierarchy.arrays import HierarchyLimits as Sizes
from tightfit.stages.partition.hierarchy.build import build_hierarchy
from tightfit.stages.simulate.liveness import (
    INFINITE_IN_PLACE_THRESHOLD,
    drop_unused_recomputes,
    simulate_executions,
)
from tightfit.stages.simulate.planning_graph import build_planning_graph
from tightfit.stages.simulate.simulate import simulate

GRID = ClusterGrid(peaks=2, saves=2, options=3, limits=SolverLimits(gap=1e-3, nodes=20, checks=100))
TOWER = ([6, 4, 4, 6, 6, 3, 5, 4], [2, 2, 5, 4, 5, 3, 4, 2])


def tasks_of(problem: PlanningGraph, size: int) -> TaskGraph:
    whole = build_clusters(problem, rows_of(problem, [size]))
    members = ClusterOptionFinder(GRID).members(problem, whole)
    return build_cluster_tasks(problem, [], members, lasting_storages(problem))


def measured(problem: PlanningGraph, sequence: list[int]) -> tuple[int, float]:
    played = simulate_executions(
        problem, sequence, in_place=True, ceiling=INFINITE_IN_PLACE_THRESHOLD
    )
    return max(run.peak for run in played), sum(run.seconds for run in played)


def test_a_row_of_clusters_has_plans_of_falling_peaks() -> None:
    problem = chain(*TOWER)
    tasks = tasks_of(problem, 2)
    found = list(plan_cluster_chain(tasks, forward_stages(tasks), 12))
    figures = [
        measured(problem, drop_unused_recomputes(problem, executed_nodes(chosen)))
        for chosen in found
    ]
    assert len(figures) > 2
    assert all(one > other for (one, _), (other, _) in pairwise(figures))
    assert all(one <= other for (_, one), (_, other) in pairwise(figures))
    kept = executed_nodes(keep_all_runs(tasks, forward_stages(tasks)))
    assert figures[0][1] == measured(problem, kept)[1]
    assert figures[-1][0] < measured(problem, kept)[0]


@pytest.mark.parametrize("size", [1, 2, 3])
def test_runs_are_solutions_of_the_program_for_their_peak(size: int) -> None:
    problem = chain(*TOWER)
    tasks = tasks_of(problem, size)
    stages = forward_stages(tasks)
    for chosen in plan_cluster_chain(tasks, stages, 12):
        program = CheckmateMilp(tasks, stages, sum(value.bytes for value in tasks.values))
        taken = {(t, k, way.option) for t, k, way in chosen}
        known = {(t, k, way.option) for (t, k), ways in program.runs.items() for way, _ in ways}
        assert taken <= known
        assert total_run_seconds(chosen) >= program.certain_seconds


@settings(deadline=None, max_examples=25, suppress_health_check=[HealthCheck.too_slow])
@given(random_steps(most=8), st.integers(1, 3))
def test_whatever_is_a_sequence_can_run(facts: GradientFlow, size: int) -> None:
    problem = facts.problem
    tasks = tasks_of(problem, size)
    for chosen in plan_cluster_chain(tasks, forward_stages(tasks), 6):
        order = drop_unused_recomputes(problem, executed_nodes(chosen))
        assert set(order) == set(range(len(problem.nodes)))
        there = {s for s, stored in enumerate(problem.storages) if stored.producer < 0}
        for run in simulate_executions(problem, order, in_place=False):
            assert there.issuperset(run.form.inputs)
            there = there.union(run.form.outputs).difference(run.drops)


def test_the_referee_lets_plans_of_a_sequence_of_clusters_pass() -> None:
    graph, costs = traced("data.models:resnet", name="resnet10", batch=2, size=64)
    problem = build_planning_graph(graph, costs)
    opener = ScheduleLowering(graph, problem)
    hierarchy = build_hierarchy(graph, costs, Sizes(nodes=12, clusters=6, top=12))
    plans = [plan for plan in plan_clusters(problem, hierarchy, GRID) if "dynamic" in plan.origin]
    peaks = []
    for plan in plans:
        ops = [problem.nodes[node].op for node in plan.sequence]
        peaks.append(simulate(graph, costs, opener.schedule(ops, False)).peak)
    assert len(peaks) > 1 and min(peaks) < max(peaks)


def test_nodes_and_what_skips_a_cluster_are_no_sequence() -> None:
    assert build_cluster_chain(build_node_tasks(chain(*TOWER))) is None
    graph, costs = traced("data.zoo_graphs:unet", channels=4, levels=2, size=8)
    tasks = tasks_of(build_planning_graph(graph, costs), 3)
    assert build_cluster_chain(tasks) is None
    assert not list(plan_cluster_chain(tasks, forward_stages(tasks), 4))
