"""Options of blocks that let something leave: the program on chains whose optimum is known, and
plans of random steps played by the simulator."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import assume, given, settings

from tests.stages.combine.engines import engines_asked
from tests.stages.combine.strategies.test_strategies import blocks_of
from tests.stages.partition.steps import random_steps
from tests.stages.simulate.problem_graphs import graph_of
from tests.stages.solve.blocks import solve_block
from tightfit.schemas.block_options import write_block_options
from tightfit.schemas.frontier import Frontier
from tightfit.schemas.link import HostLink
from tightfit.stages.combine.activation_offload.placement import offloadable_values
from tightfit.stages.combine.activation_offload.search import TransferSearch
from tightfit.stages.combine.chain.options import PositionOption
from tightfit.stages.combine.frontier import FrontierProblem, build_frontier
from tightfit.stages.combine.frontier_files import _check_link_speed
from tightfit.stages.combine.frontier_inputs import check_options
from tightfit.stages.combine.lowering.schedule import ScheduleLowering
from tightfit.stages.combine.milp import SolverLimits
from tightfit.stages.combine.offmate.milp import (
    OffloadableStorages,
    OffmateChain,
    OffmateOption,
    OffmateSolution,
    solve_offmate,
)
from tightfit.stages.combine.strategies.strategy import PlanningProblem, load_strategy
from tightfit.stages.partition.gradient_flow import GradientFlow
from tightfit.stages.simulate.planning_graph import build_planning_graph
from tightfit.stages.simulate.simulate import simulate
from tightfit.stages.solve.search import OptionGrid
from tightfit.util.errors import ArtifactError, ConfigError

EXACT = SolverLimits(gap=0.0, nodes=10_000, checks=100_000)


def option(number: int, save: int, own: int, output: int, again: float = 0.0) -> OffmateOption:
    """Forward and backward take 4 seconds each, and `again` more; nothing is beside what is saved,
    of which so many bytes may leave."""
    way = PositionOption(number, save, 10, 10, 4.0, 4.0 + again)
    return OffmateOption(way, OffloadableStorages([0], [own]), OffloadableStorages([1], [output]))


def chain(*options: OffmateOption) -> OffmateChain:
    """Two alike blocks, one second for the loss, and 3 bytes that are there throughout."""
    return OffmateChain([list(options)] * 2, [0, 0], 3, 1.0, 0)


def solved(found: OffmateChain, budget: int, link: HostLink) -> OffmateSolution:
    solution = solve_offmate(found, link, budget + found.always_resident, EXACT)
    assert solution is not None and not solution.clock
    return solution


KEPT = option(1, 10, 8, 2)


@pytest.mark.parametrize(
    ("budget", "bandwidth", "seconds"),
    [
        (20, 1.0, 17.0),
        # 6 bytes are sent while block 1 runs, for which there is time. They have no room while the
        # backward of block 2 runs, and block 1 waits for them.
        (14, 2.0, 20.0),
        # To send them takes 6 seconds now, and block 2 waits, too.
        (14, 1.0, 25.0),
        (14, math.inf, 17.0),
        (12, 2.0, 21.0),
    ],
)
def test_known_chains(budget: int, bandwidth: float, seconds: float) -> None:
    solution = solved(chain(KEPT), budget, HostLink(bandwidth))
    assert solution.bound == pytest.approx(seconds, rel=1e-4)
    first = solution.chosen[0]
    assert first.own + first.output >= 20 - budget - 1e-3


def test_the_output_stays_for_the_next_block() -> None:
    """Only the output may leave, which the next forward and backward read."""
    assert solve_offmate(chain(option(1, 10, 0, 10)), HostLink(math.inf), 3 + 19, EXACT) is None


def test_what_is_cheap_to_make_again_is_not_sent() -> None:
    """One block keeps less for a second, instead of waiting for three."""
    solution = solved(chain(KEPT, option(2, 4, 4, 0, again=1.0)), 14, HostLink(2.0))
    assert solution.bound == pytest.approx(18.0, rel=1e-4)
    assert [each.option.way.option for each in solution.chosen].count(2) == 1


def test_both_directions_of_a_shared_link_take_turns() -> None:
    """Three blocks of which 12 bytes have to leave: some come back while others are sent."""
    found = replace(chain(), positions=[[KEPT]] * 3, gradients=[0, 0, 0])
    apart, shared = (solved(found, 20, HostLink(1.0, shared=s)).bound for s in (False, True))
    assert shared >= apart * (1 - 1e-6)


def test_the_room_of_the_other_memory() -> None:
    assert solved(chain(KEPT), 14, HostLink(2.0, room=6)).bound == pytest.approx(20.0, rel=1e-4)
    assert solve_offmate(chain(KEPT), HostLink(2.0, room=5), 3 + 14, EXACT) is None
    assert solve_offmate(chain(KEPT), HostLink(2.0), 3, EXACT) is None


def test_whole_storages_are_at_least_what_leaves() -> None:
    found = OffloadableStorages([5, 6, 7, 8], [4, 10, 3, 1])
    assert found.bytes == 18
    assert found.grouped(0.0) == []
    assert found.grouped(0.5) == [8]
    assert found.grouped(10.0) == [6]
    assert found.grouped(13.5) == [6, 7, 8]
    assert found.grouped(17.5) == [6, 5, 7, 8]
    assert OffloadableStorages([], []).grouped(1.0) == []


def step_of(facts: GradientFlow, link: HostLink) -> tuple[PlanningProblem, FrontierProblem]:
    """The step of random facts, with options for the link, and what a frontier takes of it."""
    graph, costs = graph_of(facts.problem, views=False)
    problem, blocks = build_planning_graph(graph, costs), blocks_of(facts)
    options = {
        digest: solve_block(digest, block, "none", OptionGrid(), link)
        for digest, block in blocks.distinct.items()
    }
    step = PlanningProblem(problem, blocks, options, None, link, graph)
    return step, FrontierProblem(graph, "", costs, problem, link)


@settings(deadline=None, max_examples=10)
@given(random_steps(8))
def test_plans_stay_within_what_they_were_made_for(facts: GradientFlow) -> None:
    """Played by the simulator, in place where that budget asks for it; and as the search takes
    them."""
    step, subject = step_of(facts, HostLink(2.0, 0.25, device="cpu"))
    opener, problem = ScheduleLowering(subject.graph, subject.problem), subject.problem
    assert step.link is not None
    mover = TransferSearch(
        problem, step.link, offloadable_values(subject.graph, problem)
    ).timed_search
    for candidate in load_strategy("offmate").candidates(step):
        if not candidate.ceiling:
            continue
        steps = opener.of_actions(candidate.actions, True, candidate.ceiling)
        played = simulate(subject.graph, subject.costs, steps, link=step.link)
        assert played.peak <= candidate.ceiling
        placed = mover.placed(mover.of_actions(candidate.actions), candidate.ceiling)
        assert placed is not None and placed.seconds <= played.seconds * (1 + 1e-9)


@settings(deadline=None, max_examples=2)
@given(random_steps(4))
def test_the_engine_of_the_step_solves(facts: GradientFlow) -> None:
    step, _ = step_of(facts, HostLink(2.0, device="cpu"))
    with engines_asked() as asked:
        load_strategy("offmate").candidates(replace(step, engine="cbc"))
    assume(asked)
    assert asked == {"cbc"}


@settings(deadline=None, max_examples=1)
@given(random_steps(4))
def test_doctored_options_are_refused(facts: GradientFlow) -> None:
    blocks = blocks_of(facts)
    digest, problem = next(iter(blocks.distinct.items()))
    rows = solve_block(digest, problem, "none", OptionGrid(), HostLink(2.0))
    late = problem.nodes[-1].outputs
    for leaves in ([len(problem.storages)], late):
        doctored = {digest: [*rows[:-1], replace(rows[-1], leaves=leaves)]}
        with pytest.raises(
            ArtifactError, match="lets leave what the forward of the block does not"
        ):
            check_options(blocks.problems, doctored, "options.arrow")


def test_options_for_another_link_are_refused(tmp_path: Path) -> None:
    path, speed = tmp_path / "options.arrow", HostLink(2.0).speed
    for made_for, words in ((None, "for no link"), (HostLink(3.0), "for a link of 3.0 B/s, 0.0 s")):
        write_block_options(path, [], {"link": made_for.speed} if made_for else {})
        with pytest.raises(ConfigError, match=f"{words}, and the machine's is one of 2.0 B/s"):
            _check_link_speed(path, speed)
    write_block_options(path, [], {"link": speed})
    _check_link_speed(path, speed)


def frontier_of(name: str, step: PlanningProblem, subject: FrontierProblem) -> Frontier:
    [keep_all] = load_strategy("keep_all").candidates(step)
    about = replace(load_strategy(name).about, name="strategy", optimal_in="")
    return build_frontier(subject, about, load_strategy(name).candidates(step), keep_all)


@settings(deadline=None, max_examples=2)
@given(random_steps(5))
def test_no_plan_is_slower_than_without_the_link(facts: GradientFlow) -> None:
    step, subject = step_of(facts, HostLink(4.0, device="cpu"))
    plain = frontier_of("rockmate", step, replace(subject, link=None))
    linked = frontier_of("offmate", step, subject)
    for point in plain.points:
        other = linked.within(point.peak)
        assert other is not None and other.seconds <= point.seconds


@settings(deadline=None, max_examples=2)
@given(random_steps(6))
def test_without_a_bandwidth_plans_are_those_of_rockmate(facts: GradientFlow) -> None:
    step, subject = step_of(facts, HostLink(0.0, device="cpu"))
    plain = frontier_of("rockmate", step, replace(subject, link=None))
    assert replace(frontier_of("offmate", step, subject), link=None) == plain
