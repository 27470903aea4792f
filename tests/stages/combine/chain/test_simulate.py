"""The simulator of sequences on a chain."""

from __future__ import annotations

import re
from typing import Any, cast

import pytest

from tests.stages.combine.persistent import cases, chain_of_case
from tightfit.schemas.chain import Chain, ChainPosition
from tightfit.schemas.sequence import ChainOperation
from tightfit.stages.combine.chain.options import (
    ChainProblem,
    PositionOption,
    PositionOptions,
    build_chain_problem,
)
from tightfit.stages.combine.chain.simulate import simulate_chain
from tightfit.util.errors import ScheduleError

SOLVED = [case for case in cases() if case["example_sequence"]]
CHAIN = Chain(
    [
        ChainPosition(1, 1.0, 2.0, 10, 30, 10, 1, 2, 0, 5, ""),
        ChainPosition(2, 3.0, 4.0, 20, 25, 20, 3, 4, 0, 6, ""),
        ChainPosition(3, 0.5, 0.0, 0, 1, 0, 2, 7, 0, 0, ""),
    ],
    100,
    9,
)


def actions(words: list[str], last: int = 3) -> list[ChainOperation]:
    """Operations as they are read aloud, of a chain whose loss is position `last`."""
    found = []
    for text in words:
        kind, *rest = text.split()
        position, option = [*(int(part) for part in rest if part.isdigit()), -1, -1][:2]
        found.append(ChainOperation(cast(Any, kind), last if kind == "loss" else position, option))
    return found


@pytest.mark.parametrize("case", SOLVED, ids=lambda case: case["id"])
def test_example_sequences_have_their_time_within_their_memory(case: dict) -> None:
    words = [_spelled(text) for text in case["example_sequence"]]
    sequence = actions(words, case["L"] + 1)
    played = simulate_chain(build_chain_problem(chain_of_case(case)), sequence)
    assert played.seconds == case["expected_opt"]
    assert played.peak <= case["memory"]


def _spelled(text: str) -> str:
    """ "Fck1" as "F_ck 1"."""
    return re.sub(r"^F(\w+?)(\d+)$", r"F_\1 \2", re.sub(r"^B(\d+)$", r"B \1", text))


def test_time_and_peak_by_hand() -> None:
    played = simulate_chain(
        build_chain_problem(CHAIN), actions(["F_ck 1", "F_all 2", "loss", "B 2", "F_all 1", "B 1"])
    )
    assert played.seconds == 1 + 3 + 0.5 + 4 + 1 + 2
    # B 2: input 100, a_1 10, abar_2 25, delta_2 20, delta_1 10, gradient 6 and overhead 4
    assert played.peak == 100 + 10 + 25 + 20 + 10 + 6 + 4
    assert played.recomputed == 1


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["F_all 1", "F_all 2", "loss", "B 2"], "ends before B 1"),
        (["F_all 2"], "step 0 (F_all 2) reads an input that is not there"),
        (["F_all 1", "F_none 2"], "step 1 (F_none 2) reads an input that is not there"),
        (["F_ck 1", "F_none 2", "F_ck 2"], "step 2 (F_ck 2) reads an input that is not there"),
        (["F_ck 1", "F_none 2", "loss", "B 2"], "reads what no forward has kept"),
        (["F_all 1", "B 1"], "step 1 (B 1) comes before B 3"),
        (["F_all 1", "F_all 2", "loss", "F_all 3"], "step 3 (F_all 3) comes after B 3"),
        (["F_all 1", "F_all 1"], "step 1 (F_all 1) makes what is already there"),
        (["F_ck 1", "F_ck 2", "F_none 1"], "step 2 (F_none 1) makes what is already there"),
        (["F_all 4"], "step 0 (F_all 4) is on no position"),
        (["F_ck 1", "free 1", "free 1"], "step 2 (free 1) frees what is not there"),
        (["F_ck 1", "free_all 1"], "step 1 (free_all 1) frees what is not there"),
    ],
)
def test_an_invalid_sequence_is_refused(words: list[str], sentence: str) -> None:
    with pytest.raises(ScheduleError) as refused:
        simulate_chain(build_chain_problem(CHAIN), actions(words))
    assert sentence in str(refused.value)


def test_what_keeps_nothing_is_followed_by_its_backward_at_once() -> None:
    way = PositionOption(-1, 0, 4, 4, 1.0, 1.0, at_once=True)
    loss = PositionOption(-1, 0, 0, 0, 0.0, 0.0)
    ways = ChainProblem(
        [PositionOptions(4, 4, 0, 1.0, 4, [way]), PositionOptions(0, 0, 0, 0.0, 0, [loss])], 0
    )
    late = actions(["F_ck 1", "loss", "F_all 1", "B 1"], 2)
    assert simulate_chain(ways, late).seconds == 1.0 + 2.0
    with pytest.raises(ScheduleError, match="keeps nothing, and B 1 does not follow at once"):
        simulate_chain(ways, actions(["F_all 1", "loss", "B 1"], 2))


def test_a_forward_spares_its_output_only_where_its_backward_follows_at_once() -> None:
    way = PositionOption(1, 4, 4, 4, forward_seconds=2.0, backward_seconds=1.0, output_seconds=0.5)
    loss = PositionOption(-1, 0, 0, 0, 0.0, 0.0)
    ways = ChainProblem(
        [PositionOptions(4, 4, 0, 2.0, 4, [way]), PositionOptions(0, 0, 0, 0.0, 0, [loss])], 0
    )
    forward, backward = ChainOperation("F", 1, 1), ChainOperation("B", 1)
    assert simulate_chain(ways, [forward, ChainOperation("loss", 2), backward]).seconds == 3.0
    again = [ChainOperation("F_ck", 1), ChainOperation("loss", 2), forward, backward]
    assert simulate_chain(ways, again).seconds == 2.0 + 2.5
