"""The simulator of sequences on a join."""

from __future__ import annotations

import pytest

from tightfit.schemas.chain import Chain, ChainPosition
from tightfit.schemas.sequence import ChainOperation
from tightfit.stages.combine.chain.simulate import simulate_join
from tightfit.stages.combine.join.problem import build_join_problem
from tightfit.stages.combine.join.unit_costs import build_unit_join
from tightfit.util.errors import ScheduleError

LOSS = ChainPosition(2, 0.5, 0.25, 3, 4, 5, 2, 7, 0, 11, "loss")
LEFT = Chain([ChainPosition(1, 1.0, 2.0, 10, 30, 12, 1, 2, 0, 5, ""), LOSS], 100, 9)
RIGHT = Chain([ChainPosition(1, 3.0, 4.0, 20, 25, 24, 3, 6, 0, 8, ""), LOSS], 200, 7)
JOIN = build_join_problem([LEFT, RIGHT])


def actions(words: list[str]) -> list[ChainOperation]:
    """Operations as "F_all 1/2", of branch 2."""
    found = []
    for text in words:
        if text == "loss":
            found.append(ChainOperation("loss", 2))
            continue
        kind, place = text.split()
        position, branch = place.split("/")
        found.append(ChainOperation(kind, int(position), branch=int(branch)))  # type: ignore[arg-type]
    return found


def test_time_and_peak_by_hand() -> None:
    words = ["F_all 1/1", "F_ck 1/2", "loss", "B 1/1", "F_all 1/2", "B 1/2"]
    played = simulate_join(JOIN, actions(words))
    assert played.seconds == 1 + 3 + 0.5 + 0.25 + 2 + 3 + 4
    assert played.recomputed == 1
    # loss: both inputs, abar 30 and a 20, its abar 4, gradients 5, 12 and 24, its own 11, o_b 7
    assert played.peak == 300 + 30 + 20 + 4 + 5 + 12 + 24 + 11 + 7


def test_what_a_branch_leaves_counts_while_another_runs() -> None:
    first = ["F_ck 1/1", "F_ck 1/2", "loss", "F_all 1/1", "B 1/1", "F_all 1/2", "B 1/2"]
    played = simulate_join(JOIN, actions(first))
    loss = 300 + 10 + 20 + 4 + 5 + 12 + 24 + 11 + 7
    # B 1 of branch 1 beside the loss's 11 and the gradient 24: abar 30, 12, 9, its own 5, o_b 2
    assert played.peak == max(loss, 300 + 11 + 24 + 30 + 12 + 9 + 5 + 2)
    assert played.recomputed == 2


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["F_all 1/1"], "the sequence ends before the loss"),
        (["F_all 1/1", "loss"], "step 1 (loss) reads an input that is not there"),
        (["F_all 1/1", "F_all 1/2", "loss", "B 1/2"], "ends before B 1 of branch 1"),
        (["F_all 1/1", "B 1/1"], "step 1 (B 1 of branch 1) comes before the loss"),
        (["F_all 1/1", "F_all 1/2", "loss", "loss"], "step 3 (loss) makes what is already there"),
        (["F_all 1/3"], "step 0 (F_all 1 of branch 3) is on no branch of the join"),
        (["F_all 1/0"], "step 0 (F_all 1) is on no branch of the join"),
        (["F_all 2/1"], "step 0 (F_all 2 of branch 1) is on no position"),
    ],
)
def test_an_invalid_sequence_is_refused(words: list[str], sentence: str) -> None:
    with pytest.raises(ScheduleError) as refused:
        simulate_join(JOIN, actions(words))
    assert sentence in str(refused.value)


def test_a_way_that_keeps_nothing_needs_its_backward_at_once() -> None:
    join = build_unit_join([1, 1], [True, True])
    words = ["F_ck 1/1", "F_ck 1/2", "loss", "F_all 1/1", "F_all 1/2", "B 1/2", "B 1/1"]
    with pytest.raises(ScheduleError, match="keeps nothing, and B 1 does not follow at once"):
        simulate_join(join, actions(words))
    words[3:] = ["F_all 1/1", "B 1/1", "F_all 1/2", "B 1/2"]
    assert simulate_join(join, actions(words)).peak == 4
