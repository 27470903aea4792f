from __future__ import annotations

from dataclasses import replace as with_fields
from typing import Any, cast

import pytest

from tests.stages.combine.problems import two_layers
from tests.stages.simulate.problem_graphs import graph_of, with_flags
from tightfit.schemas.actions import (
    Compute,
    Free,
    PassGradient,
    RestoreRandomState,
    SaveRandomState,
    WriteBuffer,
)
from tightfit.schemas.costs import Costs, OpCost
from tightfit.schemas.graph.training_graph import Graph
from tightfit.schemas.schedule import ScheduleStep
from tightfit.stages.combine.lowering.schedule import ScheduleLowering
from tightfit.stages.simulate.planning_graph import build_planning_graph
from tightfit.stages.simulate.simulate import simulate
from tightfit.util.errors import ScheduleError


class Offload:
    """An action that no rule plays."""


def made(executions: list[int], random: bool = False) -> tuple[Graph, Costs, list[ScheduleStep]]:
    graph, costs = graph_of(two_layers(random), views=False)
    return (
        graph,
        costs,
        ScheduleLowering(graph, build_planning_graph(graph, costs)).schedule(executions, False),
    )


def refused(graph: Graph, costs: Costs, steps: list[ScheduleStep], match: str) -> None:
    with pytest.raises(ScheduleError, match=match):
        simulate(graph, costs, steps)


def test_keeping_everything_costs_the_sum_of_all_storages() -> None:
    graph, costs, steps = made([0, 1, 2, 3])
    played = simulate(graph, costs, steps)
    assert (played.peak, played.saved, played.seconds) == (16, 8, 3.0)
    assert (played.forward_seconds, played.repeated) == (2.0, 0)
    assert [step.live for step in played.steps] == [4, 8, 12, 16, 12, 12]
    assert simulate(graph, costs, steps, accumulate=True).steps[-1].live == 8


def test_a_recomputation_is_counted() -> None:
    graph, costs, steps = made([0, 1, 2, 0, 3])
    played = simulate(graph, costs, steps)
    assert (played.peak, played.saved, played.repeated, played.repeated_seconds) == (16, 4, 1, 1.0)


def test_a_random_op_that_runs_again_needs_its_state() -> None:
    graph, costs, steps = made([0, 1, 2, 0, 3], random=True)
    assert [step.action for step in steps][:2] == [SaveRandomState(0), Compute(0)]
    played = simulate(graph, costs, steps)
    assert played.saved == 4 + 2
    restore = [step.action for step in steps].index(RestoreRandomState(0))
    assert played.steps[restore + 1].peak == 8 + 2 + 2 + 4
    refused(graph, costs, steps[:restore] + steps[restore + 1 :], "draws again without")
    refused(graph, costs, steps[1:], "no random state is saved")
    moved = [*steps[: restore + 1], ScheduleStep(Free(0)), *steps[restore + 1 :]]
    refused(graph, costs, moved, "not used at once")


def test_what_cannot_run_is_refused() -> None:
    graph, costs, steps = made([0, 1, 2, 3])
    refused(graph, costs, steps[1:], r"step 0 .* reads value 0, which is not live")
    refused(graph, costs, [steps[0], *steps], "makes value 0, which is live")
    refused(graph, costs, [*steps, ScheduleStep(Free(0))], "storage 0 is not live")
    refused(graph, costs, [*steps, ScheduleStep(Free(1))], "the caller holds it")
    refused(graph, costs, [*steps, ScheduleStep(Free(3))], "the gradient in value 3 is freed")
    refused(graph, costs, [*steps, ScheduleStep(PassGradient(3))], "no gradient left")
    refused(graph, costs, [steps[0], steps[1], steps[3]], "backward runs before the loss")
    refused(
        graph,
        costs,
        [steps[0], ScheduleStep(cast(Any, Offload()))],
        "nothing says what a Offload reads, makes",
    )
    refused(graph, costs, [ScheduleStep(Compute(9))], "there is no op 9")
    refused(graph, costs, [ScheduleStep(WriteBuffer(0))], "is a compute, not a write")
    refused(graph, costs, [ScheduleStep(Compute(0, in_place=1))], "cannot overwrite value 1")
    refused(graph, costs, [ScheduleStep(Free(9))], "there is no value 9")


def test_what_is_missing_at_the_end_is_refused() -> None:
    graph, costs, steps = made([0, 1, 2, 3])
    without_gradient = [step for step in steps if not isinstance(step.action, PassGradient)]
    refused(graph, costs, without_gradient, r"the gradients \[3\] are missing")
    without_free = [step for step in steps if not isinstance(step.action, Free)]
    refused(graph, costs, without_free, r"the storages \[0\] are never freed")
    refused(graph, costs, [], r"the outputs \[1\] are not live")


def test_outputs_are_made_ahead_of_the_loss() -> None:
    graph, costs = with_flags()
    opener = ScheduleLowering(graph, build_planning_graph(graph, costs))
    assert simulate(graph, costs, opener.schedule([0, 1, 2, 3, 4], False)).seconds == 4.0
    steps = opener.schedule([0, 1, 2, 3, 4], False)
    flags, loss = (next(s for s in steps if getattr(s.action, "op", -1) == op) for op in (1, 3))
    late = [step for step in steps if step is not flags]
    late.insert(late.index(loss) + 1, flags)
    refused(graph, costs, late, r"the outputs \[4\] are not made before the loss")


def test_a_schedule_without_the_loss_is_refused() -> None:
    graph, costs, steps = made([0, 1, 2, 3])
    graph = with_fields(graph, gradients=[])
    forward = [step for step in steps[:2]]
    refused(graph, costs, [*forward, ScheduleStep(Free(0))], "the loss never runs")


def test_a_gradient_leaves_after_the_last_read_of_its_parameter() -> None:
    graph, costs, steps = made([0, 1, 2, 3])
    owner = graph.gradients[0].value
    last = graph.ops[-1]
    late = with_fields(last, id=last.id + 1, inputs=[owner], outputs=[], in_place=[])
    graph = with_fields(graph, ops=[*graph.ops, late])
    costs.of = lambda graph, op, in_place=-1: OpCost("", "", -1, 0.0, 0.0, 0, 0)  # type: ignore[method-assign]
    read = ScheduleStep(Compute(late.id))
    refused(graph, costs, [*steps, read], f"reads value {owner} after the gradient of value")
    before = next(
        place for place, step in enumerate(steps) if isinstance(step.action, PassGradient)
    )
    simulate(graph, costs, [*steps[:before], read, *steps[before:]])
