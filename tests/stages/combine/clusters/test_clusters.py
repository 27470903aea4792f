"""Options of clusters and plans that choose among them, against what can be checked by running."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.stages.combine.clusters.trees import rows_of
from tests.stages.partition.steps import random_steps, traced
from tightfit.schemas.errors import ArtifactError
from tightfit.schemas.hierarchy import Hierarchy
from tightfit.schemas.problem import Problem
from tightfit.stages.combine.clusters.cluster import Cluster, clusters_of, local, throughout
from tightfit.stages.combine.clusters.options import (
    Grid,
    Options,
    figures_of,
    selected,
    worth_having,
)
from tightfit.stages.combine.clusters.plans import ClusterPlan, plans_of
from tightfit.stages.combine.clusters.treewidth import by_treewidth
from tightfit.stages.combine.clusters.ways import Option
from tightfit.stages.combine.moment.limits import Limits
from tightfit.stages.combine.schedule.opening import Opener
from tightfit.stages.partition.facts import Facts
from tightfit.stages.partition.hierarchy.flow import Limits as Sizes
from tightfit.stages.partition.hierarchy.step import hierarchy_of
from tightfit.stages.replay.condense import condense
from tightfit.stages.replay.line import FASTEST, executions
from tightfit.stages.replay.referee import replay

GRID = Grid(peaks=2, saves=2, options=3, limits=Limits(gap=1e-3, nodes=20, checks=100))
SIZES = st.lists(st.integers(1, 4), min_size=1, max_size=2)


def peak_and_seconds(problem: Problem, sequence: list[int]) -> tuple[int, float]:
    played = executions(problem, sequence, in_place=True, ceiling=FASTEST)
    return max(run.peak for run in played), sum(run.seconds for run in played)


def runs_all(problem: Problem, plan: ClusterPlan) -> None:
    """Every node runs, what may not repeat runs once, and each read is of what is there."""
    assert set(plan.sequence) == set(range(len(problem.nodes)))
    for position, node in enumerate(problem.nodes):
        assert node.repeatable or plan.sequence.count(position) == 1


@settings(deadline=None, max_examples=25)
@given(random_steps(most=8), SIZES)
def test_plans_can_run_within_the_bytes_they_tell(facts: Facts, sizes: list[int]) -> None:
    problem = facts.problem
    plans = plans_of(problem, rows_of(problem, sizes), GRID)
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
def test_options_are_worth_what_they_cost(facts: Facts, sizes: list[int]) -> None:
    problem = facts.problem
    options = Options(GRID)
    for member in clusters_of(problem, rows_of(problem, sizes)).members:
        found = options.of(problem, member)
        assert found[0] == Option(member.forward, member.backward)
        alone, inner = local(problem, member, throughout(problem))
        number = {node: place for place, node in enumerate(_nodes(problem, member))}
        own = [
            Option(
                tuple(number[node] for node in option.forward),
                tuple(number[node] for node in option.backward),
            )
            for option in found
        ]
        assert own[0] == Option(inner.forward, inner.backward)
        assert worth_having(alone, own) == own
        for option in own:
            assert {*option.forward, alone.loss, *option.backward} == set(range(len(alone.nodes)))
            assert set(option.forward) == set(inner.forward)
        assert figures_of(alone, own[0]).seconds == min(
            figures_of(alone, option).seconds for option in own
        )


def _nodes(problem: Problem, cluster: Cluster) -> list[int]:
    return [*cluster.forward, problem.loss, *cluster.backward]


@pytest.mark.long
def test_equal_clusters_are_solved_once() -> None:
    sizes = {"layers": 3, "width": 32, "heads": 2, "vocabulary": 50, "batch": 1, "tokens": 8}
    graph, costs = traced("data.models:gpt2", **sizes)
    problem = condense(graph, costs)
    members = clusters_of(problem, hierarchy_of(graph, costs, Sizes(12, 6, 12))).members
    options = Options(replace(GRID, peaks=1, saves=1))
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
    problem = condense(graph, costs)
    hierarchy = hierarchy_of(graph, costs, Sizes(nodes=12, clusters=6, top=12))
    opener = Opener(graph, problem)
    plans = plans_of(problem, hierarchy, GRID)
    peaks = []
    for plan in plans:
        ops = [problem.nodes[node].op for node in plan.sequence]
        peaks.append(replay(graph, costs, opener.schedule(ops, False)).peak)
    assert min(peaks) < peaks[0]


def test_a_hierarchy_of_another_step_is_refused() -> None:
    graph, costs = traced("data.zoo_graphs:unet", channels=4, levels=2, size=8)
    problem = condense(graph, costs)
    hierarchy = hierarchy_of(graph, costs)
    assert isinstance(hierarchy, Hierarchy)
    other = replace(hierarchy, backward=hierarchy.backward[:-1], places=hierarchy.places[:-1])
    with pytest.raises(ArtifactError, match="the hierarchy is that of another graph"):
        clusters_of(problem, other)


def test_a_few_of_many_options_are_spread_over_what_they_keep() -> None:
    assert selected([9, 8, 7, 6, 5, 4, 3, 2, 1], 3) == [0, 4, 8]
    assert selected([9, 8, 7, 6, 5, 4, 3, 2, 1], 2) == [0, 8]
    assert selected([900, 12, 11, 10, 9, 500, 8, 7], 3) == [0, 5, 7]
    assert selected([900, 100, 90, 80, 3, 2, 1, 0], 4) == [0, 1, 3, 7]
    assert selected([4, 4, 4, 4, 4], 3) == [0, 2, 4]
    assert selected([2, 1], 5) == [0, 1]


@settings(deadline=None, max_examples=25)
@given(random_steps(most=8), SIZES, st.integers(1, 4))
def test_a_tree_decomposition_gives_options_that_can_run(
    facts: Facts, sizes: list[int], count: int
) -> None:
    problem = facts.problem
    for member in clusters_of(problem, rows_of(problem, sizes)).members:
        alone, inner = local(problem, member, throughout(problem))
        for option in by_treewidth(alone, count):
            assert set(option.forward) == set(inner.forward)
            order = [*option.forward, alone.loss, *option.backward]
            runs_all(alone, ClusterPlan(order, ""))
            there = {s for s, stored in enumerate(alone.storages) if stored.producer < 0}
            for run in executions(alone, order, in_place=False):
                assert there.issuperset(run.form.inputs)
                there = there.union(run.form.outputs).difference(run.drops)


def test_a_large_cluster_is_not_decomposed(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, costs = traced("data.zoo_graphs:unet", channels=4, levels=2, size=8)
    problem = condense(graph, costs)
    [whole] = clusters_of(problem, rows_of(problem, [999])).members
    alone, _ = local(problem, whole, throughout(problem))
    assert list(by_treewidth(alone, 2))
    monkeypatch.setattr("tightfit.stages.combine.clusters.treewidth.LARGEST", len(alone.nodes) - 1)
    assert not list(by_treewidth(alone, 2))
