"""Ranks that do not do one whole training step are refused; those that do are not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.stages.runtime.pipeline.single_process import blocks_by_hand, hard, split_by_hand
from tightfit.schemas.pipeline import PipelineSchedule, RankAction
from tightfit.stages.simulate.pipeline_rank_check import check_ranks
from tightfit.util.errors import ScheduleError


def _without(kind: str) -> Callable[[PipelineSchedule], PipelineSchedule]:
    """A pipeline whose last rank lacks its last action of a kind."""

    def change(pipeline: PipelineSchedule) -> PipelineSchedule:
        *others, last = pipeline.actions
        place = max(at for at, action in enumerate(last) if action.kind == kind)
        return replace(pipeline, actions=[*others, [*last[:place], *last[place + 1 :]]])

    return change


def _swapped(kind: str, rank: int = -1) -> Callable[[PipelineSchedule], PipelineSchedule]:
    """A pipeline of which a rank, the last one, runs its units of a kind the other way round."""

    def change(pipeline: PipelineSchedule) -> PipelineSchedule:
        actions = [list(rows) for rows in pipeline.actions]
        rows = actions[rank]
        one, other = [at for at, action in enumerate(rows) if action.kind == kind][:2]
        rows[one], rows[other] = rows[other], rows[one]
        return replace(pipeline, actions=actions)

    return change


def _moved(kind: str, place: int) -> Callable[[PipelineSchedule], PipelineSchedule]:
    """A pipeline whose last rank does its first action of a kind at another place."""

    def change(pipeline: PipelineSchedule) -> PipelineSchedule:
        *others, last = (list(rows) for rows in pipeline.actions)
        action = next(action for action in last if action.kind == kind)
        last.remove(action)
        last.insert(place, action)
        return replace(pipeline, actions=[*others, last])

    return change


def _stage(**changes: object) -> Callable[[PipelineSchedule], PipelineSchedule]:
    """A pipeline whose last stage is said to be another."""

    def change(pipeline: PipelineSchedule) -> PipelineSchedule:
        *others, last = pipeline.stages
        return replace(pipeline, stages=[*others, replace(last, **changes)])  # type: ignore[arg-type]

    return change


def _first_last(pipeline: PipelineSchedule) -> PipelineSchedule:
    """A rank receives before anything that it sends, which the other one waits for."""
    actions = [
        sorted(rows, key=lambda action: action.kind != "receive") for rows in pipeline.actions
    ]
    return replace(pipeline, actions=actions)


def _parts(pipeline: PipelineSchedule) -> PipelineSchedule:
    shared = [replace(one, parts=one.parts[:-1]) for one in pipeline.shared]
    return replace(pipeline, shared=shared)


def _order(pipeline: PipelineSchedule) -> PipelineSchedule:
    shared = [replace(one, parts=one.parts[::-1]) for one in pipeline.shared]
    return replace(pipeline, shared=shared)


def _ranks(pipeline: PipelineSchedule) -> PipelineSchedule:
    shared = [replace(one, ranks=one.ranks[:1]) for one in pipeline.shared]
    return replace(pipeline, shared=shared)


def _parcel(number: int, **changes: object) -> Callable[[PipelineSchedule], PipelineSchedule]:
    """A pipeline one of whose parcels is another."""

    def change(pipeline: PipelineSchedule) -> PipelineSchedule:
        parcels = list(pipeline.parcels)
        parcels[number] = replace(parcels[number], **changes)  # type: ignore[arg-type]
        return replace(pipeline, parcels=parcels)

    return change


def _none_of_the_models(pipeline: PipelineSchedule) -> PipelineSchedule:
    first, *others = pipeline.shared
    return replace(pipeline, shared=[replace(first, value=pipeline.parcels[0].value), *others])


def _twice(pipeline: PipelineSchedule) -> PipelineSchedule:
    more = RankAction("forward", pipeline.stages[-1].stage, 0)
    return replace(pipeline, actions=[*pipeline.actions[:-1], [*pipeline.actions[-1], more]])


CHANGES: list[tuple[Callable[[PipelineSchedule], PipelineSchedule], str]] = [
    *((_without(kind), f"has not once the {kind}") for kind in ("forward", "backward", "loss")),
    *((_without(kind), f"has not once the {kind}") for kind in ("send", "receive", "share")),
    (_without("draw"), "has not once the draw"),
    (_swapped("backward"), "comes too early"),
    (_swapped("forward"), "comes too early|lacks value"),
    (_first_last, "is not the first|waits for ever"),
    (_parts, "has not all of its parts"),
    (_order, "has not all of its parts"),
    (_ranks, "does not come to all ranks"),
    (_parcel(0, bytes=33), "has other bytes than its storage"),
    (_parcel(0, takers=[]), "nobody takes parcel 0"),
    (_twice, "has not once the forward"),
    (_stage(first=9), "stage 2 does not begin where the one before it ends"),
    (_stage(last=0), "stage 2 does not begin where the one before it ends"),
    (_stage(draws=False), "stage 2 draws random numbers or not"),
    (lambda p: replace(p, parcels=[*p.parcels, p.parcels[0]]), "two parcels are the same"),
    (_parcel(0, maker=(2, "forward")), "stage 2 does not make parcel 0"),
    (_parcel(4, takers=[(1, "backward")]), "stage 1 does not read parcel 4"),
    (lambda p: replace(p, shared=[*p.shared, p.shared[0]]), "a gradient is shared twice"),
    (_none_of_the_models, "a shared gradient is none of the model's"),
    (_moved("draw", 1), "the draw of .* is not the first"),
    (_moved("send", 1), "has nothing to send"),
    (_moved("share", 1), "comes before the gradient is whole"),
    (_moved("backward", 1), "the backward .* comes too early"),
    (_moved("backward", 0), "the backward .* comes too early"),
    (_moved("forward", 1), "the forward of 2 on microbatch 0, .* lacks value 15"),
    (_swapped("forward", 0), "the forward of 1 on microbatch 1, .* comes too early"),
]


def test_ranks_that_do_a_step() -> None:
    _, graph = hard()
    for devices, cuts in (([0], [7]), ([0, 1, 0, 2, 1], [1, 3, 4, 5, 7])):
        found = split_by_hand(graph, blocks_by_hand(graph, 6), devices, cuts, 3)
        check_ranks(found.pipeline, graph, found.graphs)


@pytest.mark.parametrize(("change", "said"), CHANGES)
def test_ranks_that_do_not(
    change: Callable[[PipelineSchedule], PipelineSchedule], said: str
) -> None:
    _, graph = hard()
    found = split_by_hand(graph, blocks_by_hand(graph, 6), [0, 1], [3, 7], 2)
    with pytest.raises(ScheduleError, match=said):
        check_ranks(change(found.pipeline), graph, found.graphs)
