"""The bytes of the ranks of a pipeline: what is left in the end, and each refusal."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache

import pytest

from tests.stages.runtime.pipeline.single_process import blocks_by_hand, hard, split_by_hand
from tests.stages.simulate.test_invalid_schedules import opened, three_parts
from tightfit.schemas.actions import ComputeLoss
from tightfit.schemas.graph.training_graph import Graph
from tightfit.schemas.pipeline import PipelineSchedule, RankAction
from tightfit.stages.combine.pipeline import split
from tightfit.stages.simulate.pipeline_rank_memory import (
    RankOverhead,
    StageMemoryTrace,
    simulate_ranks,
    stage_memory_trace,
)
from tightfit.stages.simulate.simulate import simulate
from tightfit.util.errors import ScheduleError


@dataclass(frozen=True)
class Given:
    """A pipeline of two stages and two microbatches, with what its ranks are played from."""

    pipeline: PipelineSchedule
    graph: Graph
    segments: list[StageMemoryTrace]
    extra: RankOverhead

    def play(
        self, change: Callable[[list[RankAction]], list[RankAction]] = list
    ) -> PipelineSchedule:
        """Plays it with other actions of the last rank."""
        *others, last = self.pipeline.actions
        return simulate_ranks(
            replace(self.pipeline, actions=[*others, change(last)]),
            self.graph,
            self.segments,
            self.extra,
        )


@cache
def given() -> Given:
    found: list[Given] = []

    def noted(
        pipeline: PipelineSchedule,
        graph: Graph,
        segments: list[StageMemoryTrace],
        extra: RankOverhead,
    ) -> PipelineSchedule:
        found.append(Given(pipeline, graph, segments, extra))
        return simulate_ranks(pipeline, graph, segments, extra)

    _, graph = hard()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(split, "simulate_ranks", noted)
        split_by_hand(graph, blocks_by_hand(graph, 6), [0, 1], [3, 7], 2)
    return found[0]


def moved(kind: str, place: int) -> Callable[[list[RankAction]], list[RankAction]]:
    """The first action of a kind at another place, left out where that is -1."""

    def change(actions: list[RankAction]) -> list[RankAction]:
        action = next(action for action in actions if action.kind == kind)
        rest = [other for other in actions if other is not action]
        return rest if place < 0 else [*rest[:place], action, *rest[place:]]

    return change


def test_in_the_end_gradients_and_what_a_loss_leaves_are_there() -> None:
    case = given()
    graph, played = case.graph, case.play()
    owners = {gradient.value for gradient in graph.gradients}
    for rank, stage in enumerate(case.pipeline.stages):
        own = {each.value for each in case.segments[stage.stage].graph.gradients} & owners
        own |= {shared.value for shared in case.pipeline.shared if rank in shared.ranks}
        left = sum(graph.storages[graph.values[owner].storage] for owner in own)
        left += case.extra.loss_left * case.pipeline.microbatches * (rank == 1)
        actions = played.actions[rank]
        assert actions[-1].live == left
        assert all(action.peak >= action.live for action in actions)
        assert played.peaks[rank] == max(action.peak for action in actions)


def test_what_is_added_to_a_gradient_is_held_by_nobody_then() -> None:
    graph, costs = three_parts()
    program = stage_memory_trace(
        graph, simulate(graph, costs, opened(graph, costs, [0, 1, 2, 3, 4])).steps
    )
    moments = [*program.forward, *program.backward]
    assert [moment.own for moment in moments] == [0] * len(moments)


def test_the_forward_of_a_lone_rank_takes_what_its_schedule_does() -> None:
    _, graph = hard()
    alone = split_by_hand(graph, blocks_by_hand(graph, 6), [0], [7], 1)
    [steps] = alone.schedules
    loss = next(at for at, step in enumerate(steps) if isinstance(step.action, ComputeLoss))
    [forward] = [action for action in alone.pipeline.actions[0] if action.kind == "forward"]
    assert forward.peak == max(step.peak for step in steps[:loss])


def test_a_sum_leaves_its_gradient_from_the_first_microbatch_on() -> None:
    case = given()
    graph, [summed, *_] = case.graph, case.pipeline.shared
    own = {each.gradient for each in case.segments[1].graph.gradients} - set(summed.parts)
    sizes = [graph.storages[graph.values[value].storage] for value in (*own, summed.parts[0])]
    after = [action.live for action in case.play().actions[0] if action.kind == "sum"]
    assert after == [sum(sizes)] * case.pipeline.microbatches


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (moved("wait", -1), "rank 1 never lets go of the storages"),
        (moved("wait", 1), r"rank 1 reads storage \d+, which is not there"),
        (moved("forward", 1), "rank 1 reads value 15, which is not there"),
        (moved("send", 1), r"rank 1 reads value \d+, which is not there"),
        (moved("receive", -1), "rank 1 reads value 15, which is not there"),
    ],
)
def test_what_is_not_there_is_refused(
    change: Callable[[list[RankAction]], list[RankAction]], sentence: str
) -> None:
    with pytest.raises(ScheduleError, match=sentence):
        given().play(change)
