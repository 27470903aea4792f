"""The fastest sequences whose last stored output may move on: known optima, and a search."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.stages.combine.chains import chains
from tests.stages.combine.persistent import cases, chain_of_case, optimum
from tightfit.__main__ import main
from tightfit.schemas.chain import Chain, write_chain
from tightfit.schemas.plan import read_plan
from tightfit.schemas.sequence import Operation
from tightfit.stages.combine.chain.floated import LONGEST, FloatedChain
from tightfit.stages.combine.chain.floating import Floating
from tightfit.stages.combine.chain.replay import chain_replay
from tightfit.stages.combine.chain.search import SequenceSearch, StoredState, _Move
from tightfit.stages.combine.chain.ways import PositionWays, Ways, ways_of_chain


class Unfreed(SequenceSearch):
    """Searches the sequences that are made of the operations of S Table 2.1."""

    def moves(self, state: StoredState, budget: int) -> Iterator[_Move]:
        return (move for move in self._runs(state) if move.peak <= budget)

    def _passes(
        self, state: StoredState, position: int, one: PositionWays, beside: int, plain: bool
    ) -> Iterator[_Move]:
        yield from super()._passes(state, position, one, beside, plain)
        if plain and position > 1:
            outputs = (state.outputs | {position}) - {position - 1}
            after = StoredState(outputs, state.kept, state.gradient)
            none = (Operation("F_none", position),)
            yield _Move(one.pass_seconds, beside + one.pass_peak, none, after)


@pytest.mark.parametrize("case", cases(), ids=lambda case: case["id"])
def test_the_optimum_of_every_known_case(case: dict) -> None:
    ways = ways_of_chain(chain_of_case(case))
    program, expected = Floating(ways), case["expected_c_fl_repaired"]
    assert program.whole.at(case["memory"]) == (inf if expected is None else expected)
    if expected is not None:
        played = chain_replay(ways, program.sequence(case["memory"]))
        assert played.seconds == expected and played.peak <= case["memory"]


@given(chains(), st.integers(0, 40))
@settings(max_examples=100, deadline=None)
def test_no_sequence_without_frees_is_faster(chain: Chain, budget: int) -> None:
    ways = ways_of_chain(chain)
    found = Floating(ways).whole.at(budget)
    assert found == pytest.approx(Unfreed(ways).fastest(budget).seconds)
    assert SequenceSearch(ways).fastest(budget).seconds <= found + 1e-9
    assert found <= optimum(ways, budget) + 1e-9


@given(chains())
@settings(max_examples=60, deadline=None)
def test_every_step_of_the_time_is_a_sequence_of_that_time_and_peak(chain: Chain) -> None:
    ways = ways_of_chain(chain)
    program = Floating(ways)
    for budget, seconds in zip(
        program.whole.bytes.tolist(), program.whole.seconds.tolist(), strict=True
    ):
        played = chain_replay(ways, program.sequence(budget))
        assert played.peak == budget and played.seconds == pytest.approx(seconds)


def test_a_chain_from_a_file(tmp_path: Path) -> None:
    case = cases()[0]
    write_chain(tmp_path / "chain.arrow", chain_of_case(case))
    asked = ["chain", "--chain", str(tmp_path / "chain.arrow"), "--strategy", "floating"]
    assert main([*asked, "--budget", str(case["memory"]), "--out", str(tmp_path)]) == 0
    plan = read_plan(tmp_path / "plan.json")
    assert plan.time == plan.lower_bound == 12 and plan.verdict == "optimal"
    assert plan.optimal_in.endswith("in which the last stored output may move on")
    least = Floating(ways_of_chain(chain_of_case(case))).whole.bytes[0]
    assert main([*asked, "--budget", str(least - 1), "--out", str(tmp_path)]) == 0
    plan = read_plan(tmp_path / "plan.json")
    assert plan.verdict == "infeasible" and plan.smallest_budget == least


def test_a_long_chain_is_refused() -> None:
    one = ways_of_chain(chain_of_case(cases()[0])).positions[0]
    with pytest.raises(Exception, match=f"a chain of 25 positions is too long .* to {LONGEST};"):
        FloatedChain(Ways([one] * 25, 0))
