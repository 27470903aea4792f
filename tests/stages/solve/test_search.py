from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
from hypothesis import given, settings

from tests.stages.solve.blocks import every_run, perceptron, solve_block, tiny_blocks
from tightfit.schemas.block_options import BlockOption
from tightfit.schemas.graph.planning_graph import PlanningGraph
from tightfit.schemas.link import HostLink
from tightfit.stages.simulate.block import BlockSchedule, simulate_block
from tightfit.stages.simulate.liveness import execution_forms
from tightfit.stages.solve import search
from tightfit.stages.solve.checkmate import choose_stages, count_variables
from tightfit.stages.solve.heuristics import drop_storages, quick_recompute_runs
from tightfit.stages.solve.search import OptionGrid, grid_points, min_block_peak
from tightfit.util.solver_engines import ENGINES, SolverEngine

EXACT = OptionGrid(peaks=3, saves=3, gap=0.0, variables=10)


def run_of(option: BlockOption) -> BlockSchedule:
    return BlockSchedule(tuple(option.forward), tuple(option.backward))


def check_figures(problem: PlanningGraph, options: list[BlockOption]) -> None:
    assert [option.option for option in options] == list(range(len(options)))
    for option in options[1:]:
        figures = simulate_block(problem, run_of(option))
        assert option.save == figures.save
        assert option.forward_peak == figures.forward_peak
        assert option.backward_peak == figures.backward_peak
        assert option.forward_seconds == figures.forward_seconds
        assert option.backward_seconds == figures.backward_seconds


def measures(option: BlockOption) -> tuple[float, ...]:
    return (option.save, option.forward_peak, option.backward_peak, option.seconds)


@pytest.mark.parametrize("engine", ENGINES)
def test_options_of_a_known_block(engine: SolverEngine) -> None:
    problem = perceptron()
    options = solve_block("block", problem, engine, EXACT)
    check_figures(problem, options)
    found = [(option.save, option.seconds, option.status) for option in options[1:]]
    assert (24, 15.0, "optimal") in found
    assert (14, 16.0, "optimal") in found
    assert (4, 21.0, "optimal") in found
    assert all(option.status == "optimal" for option in options)


def test_option_zero_keeps_the_output_and_has_no_backward() -> None:
    option = solve_block("block", perceptron(), "highs", EXACT)[0]
    assert (option.save, option.forward_peak, option.backward) == (4, 20, [])
    assert option.forward == [0, 1, 2]
    assert option.forward_seconds == option.output_seconds == 9.0


def test_option_zero_keeps_the_random_states_that_running_again_needs() -> None:
    option = solve_block("block", perceptron(state_bytes=3, random=True), "highs", EXACT)[0]
    assert (option.save, option.forward_peak) == (7, 23)


@settings(deadline=None, max_examples=40)
@given(tiny_blocks())
def test_options_are_true_and_none_beats_another(problem: PlanningGraph) -> None:
    options = solve_block("block", problem, "highs", EXACT)
    check_figures(problem, options)
    for option in options[1:]:
        for other in options[1:]:
            beaten = all(a <= b for a, b in zip(measures(other), measures(option), strict=True))
            assert not beaten or other is option


@settings(deadline=None, max_examples=40)
@given(tiny_blocks())
def test_what_is_said_of_an_option_is_proven(problem: PlanningGraph) -> None:
    _, stages = choose_stages(problem, EXACT.variables)
    if count_variables(stages) > EXACT.variables:
        return
    possible = [figures for _, figures in every_run(problem, stages)]
    for option in solve_block("block", problem, "highs", EXACT)[1:]:
        peak = max(option.forward_peak, option.backward_peak)
        best = min(
            figures.seconds
            for figures in possible
            if figures.peak <= peak and figures.save <= option.save
        )
        assert best >= option.seconds * (1 - option.gap) - 1e-6
        if option.status == "optimal":
            assert best == pytest.approx(option.seconds)


@settings(deadline=None, max_examples=100)
@given(tiny_blocks())
def test_no_run_needs_less_than_the_least_peak(problem: PlanningGraph) -> None:
    _, stages = choose_stages(problem, 8)
    if count_variables(stages) <= 8:
        assert min(f.peak for _, f in every_run(problem, stages)) >= min_block_peak(problem)


def test_the_grid_runs_from_loose_to_tight() -> None:
    from tightfit.stages.solve.heuristics import cheap_recompute_runs, keep_all_run
    from tightfit.stages.solve.search import CandidateRun

    problem = perceptron()
    runs = [("keep", keep_all_run(problem)), *cheap_recompute_runs(problem)]
    found = [CandidateRun(label, run, simulate_block(problem, run)) for label, run in runs]
    points = list(grid_points(problem, OptionGrid(peaks=2, saves=3), found))
    assert points == [(36, 24), (36, 14), (36, 4), (32, 24), (32, 14), (32, 4)]
    assert points[-1] == (min_block_peak(problem), 4)


def test_a_block_whose_ilps_take_minutes_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    many = [SimpleNamespace(candidates=range(1000))]
    monkeypatch.setattr(search, "choose_stages", lambda *_: ("forward nodes", many))
    options = solve_block("block", perceptron(), "highs", OptionGrid())
    assert not any("ILP" in option.label for option in options)


def test_a_block_too_large_for_an_ilp_has_the_options_by_hand() -> None:
    options = solve_block("block", perceptron(), "highs", OptionGrid(largest=0))
    assert len(options) > 2
    assert not any("ILP" in option.label for option in options)
    assert options[1].status == "optimal"


def test_what_a_known_block_keeps_may_leave() -> None:
    problem = perceptron()
    options = solve_block("block", problem, "none", EXACT, HostLink(2.0))
    plain = solve_block("block", problem, "none", EXACT)
    assert [replace(option, leaves=[], leaving_bytes=0) for option in options] == plain
    assert (options[0].leaves, options[0].leaving_bytes) == ([], 0)
    found = {option.save: (option.leaves, option.leaving_bytes) for option in options[1:]}
    # The output takes .75 s a byte to make again, b .5 s and a .1 s.
    assert found == {24: ([3, 2, 1], 24), 14: ([3, 2], 14), 4: ([3], 4)}


def test_what_is_quicker_made_again_than_sent_is_dropped() -> None:
    problem = perceptron()

    def labels(bandwidth: float) -> list[str]:
        found = solve_block("block", problem, "none", OptionGrid(), HostLink(bandwidth))
        return [option.label for option in found]

    def dropped(bandwidth: float) -> list[BlockSchedule]:
        return [run for _, run in quick_recompute_runs(problem, HostLink(bandwidth))]

    # To send 10 bytes and to bring them back takes 20 seconds by the bandwidth; a takes 1, b 5.
    assert dropped(30.0) == []
    assert dropped(10.0)[0] == drop_storages(problem, [1])
    assert dropped(1.0)[0] == drop_storages(problem, [1, 2])
    assert labels(30.0) == labels(math.inf) == labels(0.0)


@settings(deadline=None, max_examples=30)
@given(tiny_blocks())
def test_what_leaves_was_kept(problem: PlanningGraph) -> None:
    plain = solve_block("block", problem, "none", EXACT)
    assert solve_block("block", problem, "none", EXACT, HostLink(0.0)) == plain
    options = solve_block("block", problem, "none", EXACT, HostLink(3.0, 0.5))
    check_figures(problem, options)
    for option in options[1:]:
        sizes = [problem.storages[storage].bytes for storage in option.leaves]
        assert option.leaving_bytes == sum(sizes) <= option.save
        assert all(sizes) and len(set(option.leaves)) == len(option.leaves)
        order = [*option.forward, problem.loss, *option.backward]
        later = {
            s
            for form in execution_forms(problem, order)[len(option.forward) :]
            for s in form.inputs
        }
        assert later.issuperset(option.leaves)
        assert not any(problem.storages[storage].stays for storage in option.leaves)
