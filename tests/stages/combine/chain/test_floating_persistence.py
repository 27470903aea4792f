"""The fastest sequences whose last stored output may move on: known optima, and a search."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.stages.combine.chain.test_command import layers
from tests.stages.combine.chains import chains
from tests.stages.combine.persistent import cases, chain_of_case, optimum
from tightfit.__main__ import main
from tightfit.schemas.chain import Chain, write_chain
from tightfit.schemas.plan import read_plan
from tightfit.schemas.sequence import ChainOperation
from tightfit.stages.combine.chain.floating_persistence import (
    MAX_FLOATING_TABLE_POSITIONS,
    FloatingProgram,
    floating_chain_plans,
)
from tightfit.stages.combine.chain.floating_table import FloatingTableProgram
from tightfit.stages.combine.chain.frontier import ProgramFrontier
from tightfit.stages.combine.chain.options import ChainProblem, PositionOptions, build_chain_problem
from tightfit.stages.combine.chain.sequence_search import SequenceSearch, StoredState, _Move
from tightfit.stages.combine.chain.simulate import simulate_chain


class Unfreed(SequenceSearch):
    """Searches the sequences that are made of the operations of S Table 2.1."""

    def moves(self, state: StoredState, budget: int) -> Iterator[_Move]:
        return (move for move in self._runs(state) if move.peak <= budget)

    def _passes(
        self, state: StoredState, position: int, one: PositionOptions, beside: int, plain: bool
    ) -> Iterator[_Move]:
        yield from super()._passes(state, position, one, beside, plain)
        if plain and position > 1:
            outputs = (state.outputs | {position}) - {position - 1}
            after = StoredState(outputs, state.kept, state.gradient)
            none = (ChainOperation("F_none", position),)
            yield _Move(one.pass_seconds, beside + one.pass_peak, none, after)


@pytest.mark.parametrize("case", cases(), ids=lambda case: case["id"])
def test_the_optimum_of_every_known_case(case: dict) -> None:
    ways = build_chain_problem(chain_of_case(case))
    program, expected = FloatingProgram(ways), case["expected_c_fl_repaired"]
    assert program.whole.at(case["memory"]) == (inf if expected is None else expected)
    if expected is not None:
        played = simulate_chain(ways, program.sequence(case["memory"]))
        assert played.seconds == expected and played.peak <= case["memory"]


@given(chains(), st.integers(0, 40))
@settings(max_examples=100, deadline=None)
def test_no_sequence_without_frees_is_faster(chain: Chain, budget: int) -> None:
    ways = build_chain_problem(chain)
    found = FloatingProgram(ways).whole.at(budget)
    assert found == pytest.approx(Unfreed(ways).fastest(budget).seconds)
    assert SequenceSearch(ways).fastest(budget).seconds <= found + 1e-9
    assert found <= optimum(ways, budget) + 1e-9


@given(chains())
@settings(max_examples=60, deadline=None)
def test_every_step_of_the_time_is_a_sequence_of_that_time_and_peak(chain: Chain) -> None:
    ways = build_chain_problem(chain)
    program = FloatingProgram(ways)
    for budget, seconds in zip(
        program.whole.bytes.tolist(), program.whole.seconds.tolist(), strict=True
    ):
        played = simulate_chain(ways, program.sequence(budget))
        assert played.peak == budget and played.seconds == pytest.approx(seconds)


def test_a_chain_from_a_file(tmp_path: Path) -> None:
    case = cases()[0]
    write_chain(tmp_path / "chain.arrow", chain_of_case(case))
    asked = [
        "chain",
        "--chain",
        str(tmp_path / "chain.arrow"),
        "--strategy",
        "floating_persistence",
    ]
    assert main([*asked, "--budget", str(case["memory"]), "--out", str(tmp_path)]) == 0
    plan = read_plan(tmp_path / "plan.json")
    assert plan.time == plan.lower_bound == 12 and plan.status == "optimal"
    assert plan.optimal_in.endswith("in which the last stored output may move on")
    least = FloatingProgram(build_chain_problem(chain_of_case(case))).whole.bytes[0]
    assert main([*asked, "--budget", str(least - 1), "--out", str(tmp_path)]) == 0
    plan = read_plan(tmp_path / "plan.json")
    assert plan.status == "infeasible" and plan.smallest_budget == least


def frontier_of(chain: Chain, slots: int = 500) -> ProgramFrontier:
    return ProgramFrontier(FloatingTableProgram(build_chain_problem(chain)), slots)


@given(chains(longest=5), st.integers(0, 40))
@settings(max_examples=100, deadline=None)
def test_a_table_finds_what_the_program_without_slots_finds(chain: Chain, budget: int) -> None:
    ways = build_chain_problem(chain)
    exact, frontier = FloatingProgram(ways).whole, frontier_of(chain)
    assert frontier.smallest_budget == exact.bytes[0]
    plan = frontier.within(budget)
    found = inf if plan is None else plan.seconds
    assert found == pytest.approx(exact.at(budget))
    if plan is not None:
        played = simulate_chain(ways, plan.sequence)
        assert (played.seconds, played.peak) == (plan.seconds, plan.peak)
        assert plan.peak <= budget


@given(chains(longest=6), st.integers(1, 9), st.integers(0, 60))
@settings(max_examples=100, deadline=None)
def test_rounding_to_slots_keeps_the_budget_and_bounds_the_optimum(
    chain: Chain, slots: int, budget: int
) -> None:
    exact, frontier = FloatingProgram(build_chain_problem(chain)).whole, frontier_of(chain, slots)
    plan = frontier.within(budget)
    if plan is None:
        assert budget < exact.bytes[0]
        return
    assert plan.peak <= budget and plan.seconds >= exact.at(budget) - 1e-9
    assert frontier.bound(budget) <= exact.at(budget) + 1e-9


@pytest.mark.parametrize("case", cases(), ids=lambda case: case["id"])
def test_a_table_has_the_optimum_of_every_known_case(case: dict) -> None:
    plan = frontier_of(chain_of_case(case)).within(case["memory"])
    assert (None if plan is None else plan.seconds) == case["expected_c_fl_repaired"]


def test_a_chain_of_more_than_24_positions_is_planned_in_slots(tmp_path: Path) -> None:
    write_chain(tmp_path / "chain.arrow", layers(27))
    words = ["chain", "--chain", str(tmp_path / "chain.arrow"), "--budget", "30%", "--slots", "60"]
    found = {}
    for name in ("floating_persistence", "rotor"):
        assert main([*words, "--strategy", name, "--out", str(tmp_path / name)]) == 0
        found[name] = read_plan(tmp_path / name / "plan.json")
    plan = found["floating_persistence"]
    assert plan.feasible and plan.solver == "dynamic program, 60 slots"
    assert plan.time is not None and plan.lower_bound is not None
    assert plan.lower_bound <= plan.time <= (found["rotor"].time or 0) + 1e-9


def test_a_long_chain_is_refused() -> None:
    one = build_chain_problem(chain_of_case(cases()[0])).positions[0]
    most = MAX_FLOATING_TABLE_POSITIONS
    with pytest.raises(Exception, match=f"a chain of 81 positions is too long .* to {most};"):
        floating_chain_plans(ChainProblem([one] * 81, 0), 500)
