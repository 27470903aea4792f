"""Clusters in a row, run by the dynamic program, against the referee and the integer program."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.stages.combine.clusters.trees import rows_of
from tests.stages.combine.polish.test_optimum import chain
from tests.stages.partition.steps import random_steps, traced
from tightfit.schemas.problem import Problem
from tightfit.stages.combine.clusters.cluster import clusters_of, throughout
from tightfit.stages.combine.clusters.options import Grid, Options
from tightfit.stages.combine.clusters.plans import plans_of
from tightfit.stages.combine.clusters.sequence import by_sequence, ways_of_tasks
from tightfit.stages.combine.clusters.ways import tasks_of_clusters
from tightfit.stages.combine.moment.limits import Limits
from tightfit.stages.combine.schedule.opening import Opener
from tightfit.stages.combine.unrolled.frontier import nodes_of
from tightfit.stages.combine.unrolled.program import Unrolled
from tightfit.stages.combine.unrolled.starts import all_kept, seconds_of
from tightfit.stages.combine.unrolled.tasks import Tasks, forward_stages, tasks_of_nodes
from tightfit.stages.partition.facts import Facts
from tightfit.stages.partition.hierarchy.flow import Limits as Sizes
from tightfit.stages.partition.hierarchy.step import hierarchy_of
from tightfit.stages.replay.condense import condense
from tightfit.stages.replay.line import FASTEST, executions
from tightfit.stages.replay.referee import replay
from tightfit.stages.replay.useless import without_useless

GRID = Grid(peaks=2, saves=2, options=3, limits=Limits(gap=1e-3, nodes=20, checks=100))
TOWER = ([6, 4, 4, 6, 6, 3, 5, 4], [2, 2, 5, 4, 5, 3, 4, 2])


def tasks_of(problem: Problem, size: int) -> Tasks:
    whole = clusters_of(problem, rows_of(problem, [size]))
    members = Options(GRID).members(problem, whole)
    return tasks_of_clusters(problem, [], members, throughout(problem))


def measured(problem: Problem, sequence: list[int]) -> tuple[int, float]:
    played = executions(problem, sequence, in_place=True, ceiling=FASTEST)
    return max(run.peak for run in played), sum(run.seconds for run in played)


def test_a_row_of_clusters_has_plans_of_falling_peaks() -> None:
    problem = chain(*TOWER)
    tasks = tasks_of(problem, 2)
    found = list(by_sequence(tasks, forward_stages(tasks), 12))
    figures = [measured(problem, without_useless(problem, nodes_of(chosen))) for chosen in found]
    assert len(figures) > 2
    assert all(one > other for (one, _), (other, _) in pairwise(figures))
    assert all(one <= other for (_, one), (_, other) in pairwise(figures))
    kept = nodes_of(all_kept(tasks, forward_stages(tasks)))
    assert figures[0][1] == measured(problem, kept)[1]
    assert figures[-1][0] < measured(problem, kept)[0]


@pytest.mark.parametrize("size", [1, 2, 3])
def test_runs_are_solutions_of_the_program_for_their_peak(size: int) -> None:
    problem = chain(*TOWER)
    tasks = tasks_of(problem, size)
    stages = forward_stages(tasks)
    for chosen in by_sequence(tasks, stages, 12):
        program = Unrolled(tasks, stages, sum(value.bytes for value in tasks.values))
        taken = {(t, k, way.option) for t, k, way in chosen}
        known = {(t, k, way.option) for (t, k), ways in program.runs.items() for way, _ in ways}
        assert taken <= known
        assert seconds_of(chosen) >= program.sure


@settings(deadline=None, max_examples=25, suppress_health_check=[HealthCheck.too_slow])
@given(random_steps(most=8), st.integers(1, 3))
def test_whatever_is_a_sequence_can_run(facts: Facts, size: int) -> None:
    problem = facts.problem
    tasks = tasks_of(problem, size)
    for chosen in by_sequence(tasks, forward_stages(tasks), 6):
        order = without_useless(problem, nodes_of(chosen))
        assert set(order) == set(range(len(problem.nodes)))
        there = {s for s, stored in enumerate(problem.storages) if stored.producer < 0}
        for run in executions(problem, order, in_place=False):
            assert there.issuperset(run.form.inputs)
            there = there.union(run.form.outputs).difference(run.drops)


def test_the_referee_lets_plans_of_a_sequence_of_clusters_pass() -> None:
    graph, costs = traced("data.models:resnet", name="resnet10", batch=2, size=64)
    problem = condense(graph, costs)
    opener = Opener(graph, problem)
    hierarchy = hierarchy_of(graph, costs, Sizes(nodes=12, clusters=6, top=12))
    plans = [plan for plan in plans_of(problem, hierarchy, GRID) if "dynamic" in plan.origin]
    peaks = []
    for plan in plans:
        ops = [problem.nodes[node].op for node in plan.sequence]
        peaks.append(replay(graph, costs, opener.schedule(ops, False)).peak)
    assert len(peaks) > 1 and min(peaks) < max(peaks)


def test_nodes_and_what_skips_a_cluster_are_no_sequence() -> None:
    assert ways_of_tasks(tasks_of_nodes(chain(*TOWER))) is None
    graph, costs = traced("data.zoo_graphs:unet", channels=4, levels=2, size=8)
    tasks = tasks_of(condense(graph, costs), 3)
    assert ways_of_tasks(tasks) is None
    assert not list(by_sequence(tasks, forward_stages(tasks), 4))
