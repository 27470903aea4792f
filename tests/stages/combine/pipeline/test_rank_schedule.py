"""The order of a pipeline's ranks: nobody waits for somebody who waits, whoever has what."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.stages.runtime.pipeline.single_process import plan_by_hand
from tightfit.schemas.pipeline import PipelineTransfer, PipelineUnit, RankAction
from tightfit.stages.combine.pipeline.rank_schedule import rank_actions
from tightfit.stages.simulate.pipeline_pattern import issue_order, unroll_pattern


@st.composite
def orders(draw: st.DrawFn) -> tuple[list[list[RankAction]], int, int]:
    """Actions of stages on up to three devices, with what neighbors and others exchange."""
    count = draw(st.integers(1, 6))
    found = draw(st.lists(st.integers(0, 2), min_size=count, max_size=count))
    devices = [sorted(set(found)).index(device) for device in found]
    microbatches = draw(st.integers(1, 6))
    apart = draw(st.integers(1, 2 * count + 1))
    _, pattern = plan_by_hand(devices, range(1, count + 1), apart)
    parcels: list[PipelineTransfer] = []
    for maker in range(1, count + 1):
        later = [(stage, "forward") for stage in range(maker + 1, count + 1)]
        earlier = [(stage, draw(st.sampled_from(["backward", "sum"]))) for stage in range(1, maker)]
        for phase, takers in (("forward", later), ("backward", earlier)):
            some: list[PipelineUnit] = [taker for taker in takers if draw(st.booleans())]
            if some:
                parcels.append(PipelineTransfer(len(parcels), (maker, phase), some, 1))
    return rank_actions(pattern, microbatches, devices, parcels, []), count, microbatches


@settings(max_examples=150, deadline=None)
@given(orders())
def test_every_rank_comes_to_its_end(made: tuple[list[list[RankAction]], int, int]) -> None:
    """A message is sent when both ends are there: a `wait` ends when the other rank has come to its
    receive, and a receive when the message was sent."""
    actions, count, microbatches = made
    places = [0] * len(actions)
    moved = True
    while moved:
        moved = False
        for rank, own in enumerate(actions):
            while places[rank] < len(own) and _possible(actions, places, rank):
                places[rank] += 1
                moved = True
    assert places == [len(own) for own in actions]
    runs = [action for own in actions for action in own if action.kind in ("forward", "backward")]
    assert len(runs) == 2 * count * microbatches


def _possible(actions: Sequence[Sequence[RankAction]], places: Sequence[int], rank: int) -> bool:
    action = actions[rank][places[rank]]
    if action.kind not in ("receive", "wait"):
        return True
    other = {"receive": "send", "wait": "receive"}[action.kind]
    wanted = (other, action.subject, action.microbatch, rank)
    begun = actions[action.peer][: places[action.peer] + (other == "receive")]
    return any((a.kind, a.subject, a.microbatch, a.peer) == wanted for a in begun)


def test_batches_follow_each_other_as_in_the_pattern() -> None:
    _, pattern = plan_by_hand([0, 1], [1, 2], 2)
    order = issue_order(pattern, 2)
    assert [row for row in order if row[2] == 0] == [
        ("forward", 1, 0), ("forward", 2, 0), ("backward", 2, 0), ("backward", 1, 0),
    ]  # fmt: skip
    assert order.index(("forward", 1, 1)) < order.index(("backward", 1, 0))
    rows = unroll_pattern(pattern, 2)
    assert rows[0][0] == 0.0 and len(rows) == 2 * len(pattern.operations)
    assert [start for start, _, _ in rows] == sorted(start for start, _, _ in rows)
