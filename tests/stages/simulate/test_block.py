from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.stages.combine.problems import problems
from tests.stages.simulate.problem_graphs import graph_of
from tests.stages.solve.blocks import perceptron, tiny_blocks
from tightfit.schemas.actions import Compute, ComputeLoss
from tightfit.schemas.graph.planning_graph import PlanningGraph
from tightfit.stages.combine.lowering.schedule import ScheduleLowering
from tightfit.stages.simulate.block import BlockSchedule, simulate_block
from tightfit.stages.simulate.liveness import INFINITE_IN_PLACE_THRESHOLD, execution_forms
from tightfit.stages.simulate.simulate import simulate
from tightfit.stages.solve.heuristics import (
    backward_nodes,
    cheap_recompute_runs,
    drop_storages,
    droppable_storages,
    forward_nodes,
    keep_all_run,
    output_only_nodes,
    remove_unneeded_recomputes,
)


def played(problem: PlanningGraph, run: BlockSchedule) -> tuple[int, int, int]:
    """(save, forward peak, backward peak), step by step, looking ahead at each step."""
    order = [*run.forward, problem.loss, *run.backward]
    formed = [problem.nodes[p].form(p in order[:step]) for step, p in enumerate(order)]
    live: set[int] = set()
    peaks = {"forward": 0, "loss": 0, "backward": 0}
    save = 0
    for step, form in enumerate(formed):
        phase = "forward" if step < len(run.forward) else "backward"
        if order[step] == problem.loss:
            save = sum(problem.storages[s].bytes for s in live)
            phase = "loss"
        before = sum(problem.storages[s].bytes for s in live)
        there = live | set(form.outputs)
        live = set()
        for storage in there:
            later = [
                "read" if storage in other.inputs else "made"
                for other in formed[step + 1 :]
                if storage in other.inputs or storage in other.outputs
            ]
            if problem.storages[storage].stays or later[:1] == ["read"]:
                live.add(storage)
        over = [r.peak for r in form.reuses if r.seconds <= form.seconds and r.storage not in live]
        peaks[phase] = max(peaks[phase], before + (over[0] if over else form.peak))
    return save, max(save, peaks["forward"]), peaks["backward"]


@settings(deadline=None, max_examples=200)
@given(tiny_blocks(forward=5), st.randoms(use_true_random=False))
def test_figures_are_those_of_playing_step_by_step(
    problem: PlanningGraph, chance: random.Random
) -> None:
    dropped = {storage for storage in droppable_storages(problem) if chance.random() < 0.5}
    run = drop_storages(problem, dropped, each_time=chance.random() < 0.5)
    figures = simulate_block(problem, run)
    assert (figures.save, figures.forward_peak, figures.backward_peak) == played(problem, run)


def test_figures_of_a_known_block() -> None:
    problem = perceptron()
    figures = simulate_block(problem, keep_all_run(problem))
    assert figures.save == 24
    assert figures.forward_peak == 24
    assert figures.backward_peak == 10 + 10 + 4 + 12  # a, b, the gradient; what node 4 makes
    assert (figures.forward_seconds, figures.backward_seconds) == (9.0, 6.0)
    dropped = simulate_block(problem, drop_storages(problem, {1, 2}))
    assert (dropped.save, dropped.forward_peak) == (4, 20)


def test_a_random_node_that_runs_again_keeps_its_state() -> None:
    plain, random_ = perceptron(), perceptron(state_bytes=3, random=True)
    run = drop_storages(plain, {1})
    before, after = simulate_block(plain, run), simulate_block(random_, run)
    assert after.save == before.save + 3
    assert (
        simulate_block(random_, keep_all_run(plain)).save
        == simulate_block(plain, keep_all_run(plain)).save
    )


def test_a_state_is_there_while_the_first_run_executes() -> None:
    problem = perceptron(state_bytes=3, random=True)
    problem.nodes[0] = replace(problem.nodes[0], peak=90)
    assert simulate_block(problem, keep_all_run(problem)).forward_peak == 90
    assert simulate_block(problem, drop_storages(problem, {1})).forward_peak == 93


@settings(deadline=None, max_examples=200)
@given(problems(), st.randoms(use_true_random=False))
def test_peaks_with_random_states_are_the_referees(
    problem: PlanningGraph, chance: random.Random
) -> None:
    nodes = [
        replace(node, random=chance.random() < 0.5, peak=node.peak + chance.randrange(30))
        if node.phase == "forward"
        else node
        for node in problem.nodes
    ]
    problem = replace(problem, nodes=nodes, state_bytes=5)
    dropped = {storage for storage in droppable_storages(problem) if chance.random() < 0.7}
    run = drop_storages(problem, dropped, each_time=chance.random() < 0.5)
    figures = simulate_block(problem, run)
    graph, costs = graph_of(problem, views=False)
    order = [*run.forward, problem.loss, *run.backward]
    played = simulate(
        graph,
        costs,
        ScheduleLowering(graph, problem).schedule(order, True, INFINITE_IN_PLACE_THRESHOLD),
    )
    peaks = [step.peak for step in played.steps if isinstance(step.action, Compute)]
    runs = [step.action for step in played.steps if isinstance(step.action, Compute | ComputeLoss)]
    computed = [run.op for run in runs]
    loss = computed.index(problem.loss)
    assert figures.forward_peak == max([played.saved, *peaks[:loss]])
    assert figures.backward_peak == max(peaks[loss:], default=0)
    assert figures.save == played.saved


@pytest.mark.parametrize(
    ("forward", "backward", "words"),
    [
        ((0, 2), (4, 5, 6), "node 2 reads storage 2"),
        ((0, 1, 2), (5, 4, 6), "node 5 reads storage 5"),
        ((0, 1), (4, 5, 6), "node 3 reads storage 3"),
    ],
)
def test_what_cannot_run_is_refused(
    forward: tuple[int, ...], backward: tuple[int, ...], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        simulate_block(perceptron(), BlockSchedule(forward, backward))


def test_what_must_run_once_is_refused_twice() -> None:
    problem = perceptron()
    with pytest.raises(ValueError, match="runs again"):
        simulate_block(problem, BlockSchedule((0, 1, 2, problem.loss), (4, 5, 6)))


@settings(deadline=None, max_examples=200)
@given(tiny_blocks(forward=5))
def test_hand_made_runs_can_run(problem: PlanningGraph) -> None:
    runs = [keep_all_run(problem), *(run for _, run in cheap_recompute_runs(problem))]
    for run in runs:
        simulate_block(problem, run)
        assert run.forward == forward_nodes(problem)
        assert [k for k in run.backward if k > problem.loss] == list(backward_nodes(problem))
        assert remove_unneeded_recomputes(problem, run) == run


@settings(deadline=None, max_examples=200)
@given(tiny_blocks(forward=5))
def test_nodes_for_the_output_alone_can_be_left_out(problem: PlanningGraph) -> None:
    for run in [keep_all_run(problem), *(run for _, run in cheap_recompute_runs(problem))]:
        spare = set(output_only_nodes(problem, run))
        needed = [k for k in run.forward if k not in spare]
        made = {s for k in needed for s in problem.nodes[k].outputs}
        made |= {s for s, stored in enumerate(problem.storages) if stored.producer < 0}
        made |= set(problem.nodes[problem.loss].outputs)
        for form in execution_forms(
            problem, [*needed, *(k for k in run.backward if k < problem.loss)]
        ):
            assert made.issuperset(form.inputs)
            made |= set(form.outputs)
        assert all(problem.nodes[k].repeatable for k in spare)


def test_output_alone_of_a_known_block() -> None:
    problem = perceptron()
    assert output_only_nodes(problem, keep_all_run(problem)) == (2,)
    assert output_only_nodes(problem, drop_storages(problem, {1, 2})) == (0, 1, 2)
