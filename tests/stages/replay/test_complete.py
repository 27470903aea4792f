"""Ranks that do not do one whole training step are refused; those that do are not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from schemas.errors import ScheduleError
from schemas.pipeline import Pipeline, RankAction
from stages.replay.complete import check_ranks
from tests.stages.generate.turns import blocks_by_hand, hard, split_by_hand


def _without(kind: str) -> Callable[[Pipeline], Pipeline]:
    """A pipeline whose last rank lacks its last action of a kind."""

    def change(pipeline: Pipeline) -> Pipeline:
        *others, last = pipeline.actions
        place = max(at for at, action in enumerate(last) if action.kind == kind)
        return replace(pipeline, actions=[*others, [*last[:place], *last[place + 1 :]]])

    return change


def _swapped(kind: str) -> Callable[[Pipeline], Pipeline]:
    """A pipeline of which the first rank with two units of a kind runs them the other way round."""

    def change(pipeline: Pipeline) -> Pipeline:
        actions = [list(rows) for rows in pipeline.actions]
        rows = actions[-1]
        one, other = [at for at, action in enumerate(rows) if action.kind == kind][:2]
        rows[one], rows[other] = rows[other], rows[one]
        return replace(pipeline, actions=actions)

    return change


def _first_last(pipeline: Pipeline) -> Pipeline:
    """A rank receives before anything that it sends, which the other one waits for."""
    actions = [
        sorted(rows, key=lambda action: action.kind != "receive") for rows in pipeline.actions
    ]
    return replace(pipeline, actions=actions)


def _parts(pipeline: Pipeline) -> Pipeline:
    shared = [replace(one, parts=one.parts[:-1]) for one in pipeline.shared]
    return replace(pipeline, shared=shared)


def _order(pipeline: Pipeline) -> Pipeline:
    shared = [replace(one, parts=one.parts[::-1]) for one in pipeline.shared]
    return replace(pipeline, shared=shared)


def _ranks(pipeline: Pipeline) -> Pipeline:
    shared = [replace(one, ranks=one.ranks[:1]) for one in pipeline.shared]
    return replace(pipeline, shared=shared)


def _bytes(pipeline: Pipeline) -> Pipeline:
    first, *others = pipeline.parcels
    return replace(pipeline, parcels=[replace(first, bytes=first.bytes + 1), *others])


def _taker(pipeline: Pipeline) -> Pipeline:
    first, *others = pipeline.parcels
    return replace(pipeline, parcels=[replace(first, takers=[]), *others])


def _twice(pipeline: Pipeline) -> Pipeline:
    more = RankAction("forward", pipeline.stages[-1].stage, 0)
    return replace(pipeline, actions=[*pipeline.actions[:-1], [*pipeline.actions[-1], more]])


CHANGES: list[tuple[Callable[[Pipeline], Pipeline], str]] = [
    *((_without(kind), f"has not once the {kind}") for kind in ("forward", "backward", "loss")),
    *((_without(kind), f"has not once the {kind}") for kind in ("send", "receive", "share")),
    (_without("draw"), "has not once the draw"),
    (_swapped("backward"), "comes too early"),
    (_swapped("forward"), "comes too early|lacks value"),
    (_first_last, "is not the first|waits for ever"),
    (_parts, "has not all of its parts"),
    (_order, "has not all of its parts"),
    (_ranks, "does not come to all ranks"),
    (_bytes, "has other bytes than its storage"),
    (_taker, "nobody takes parcel 0"),
    (_twice, "has not once the forward"),
]


def test_ranks_that_do_a_step() -> None:
    _, graph = hard()
    for devices, cuts in (([0], [7]), ([0, 1, 0, 2, 1], [1, 3, 4, 5, 7])):
        found = split_by_hand(graph, blocks_by_hand(graph, 6), devices, cuts, 3)
        check_ranks(found.pipeline, graph, found.graphs)


@pytest.mark.parametrize(("change", "said"), CHANGES)
def test_ranks_that_do_not(change: Callable[[Pipeline], Pipeline], said: str) -> None:
    _, graph = hard()
    found = split_by_hand(graph, blocks_by_hand(graph, 6), [0, 1], [3, 7], 2)
    with pytest.raises(ScheduleError, match=said):
        check_ranks(change(found.pipeline), graph, found.graphs)
