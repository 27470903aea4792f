"""What the simulator refuses beyond the plainest cases: a test for each reason to refuse."""

from __future__ import annotations

from dataclasses import replace as with_fields

import pytest

from tests.stages.combine.problems import two_layers
from tests.stages.simulate.problem_graphs import batch_norm, graph_of, three_parts, two_ways
from tightfit.schemas.actions import (
    Compute,
    ComputeLoss,
    Free,
    FreeRandomState,
    PassGradient,
    RestoreRandomState,
    SaveRandomState,
    WriteBuffer,
)
from tightfit.schemas.costs import Costs, OpCost, op_cost_key
from tightfit.schemas.graph.op_arguments import encode_arguments
from tightfit.schemas.graph.planning_graph import (
    InPlaceVariant,
    PlanningGraph,
    PlanningNode,
    PlanningStorage,
)
from tightfit.schemas.graph.training_graph import NO_VALUE, Graph, GraphValue, Op
from tightfit.schemas.schedule import ScheduleStep
from tightfit.stages.combine.lowering.schedule import ScheduleLowering
from tightfit.stages.simulate.planning_graph import build_planning_graph
from tightfit.stages.simulate.simulate import CHECK_OF_ACTION, simulate
from tightfit.util.errors import ScheduleError


def opened(graph: Graph, costs: Costs, executions: list[int]) -> list[ScheduleStep]:
    return ScheduleLowering(graph, build_planning_graph(graph, costs)).schedule(executions, False)


def refused(
    graph: Graph, costs: Costs, steps: list[ScheduleStep], match: str, accumulate: bool = False
) -> None:
    with pytest.raises(ScheduleError, match=match):
        simulate(graph, costs, steps, accumulate)


def two_draws() -> tuple[Graph, Costs]:
    """Ops 0 and 1 draw, op 2 reads both, 3 is the loss, 4 makes the gradient."""
    nodes = [
        PlanningNode(0, "forward", 1.0, 4, [], [0], [], True, True),
        PlanningNode(1, "forward", 1.0, 4, [], [1], [], True, True),
        PlanningNode(2, "forward", 1.0, 4, [0, 1], [2], [], False, True),
        PlanningNode(3, "loss", 0.0, 4, [2], [3], [], False, False),
        PlanningNode(4, "backward", 1.0, 4, [0, 1, 3], [4], [], False, True),
    ]
    storages = [PlanningStorage(4, index, index in (2, 3), index == 4) for index in range(5)]
    return graph_of(PlanningGraph(nodes, storages, 2), views=False)


def with_op(graph: Graph, costs: Costs, op: Op) -> tuple[Graph, Costs]:
    """The graph with one op more at its end, which costs nothing in any form."""
    graph = with_fields(graph, ops=[*graph.ops, op])
    rows = [
        OpCost(op_cost_key(graph, op, value), op.target, NO_VALUE, 0.0, 0.0, 0, 0)
        for value in (NO_VALUE, *op.in_place)
    ]
    return graph, Costs([*costs.rows.values(), *rows], costs.device)


def with_update(repeatable: bool = False) -> tuple[Graph, Costs, list[ScheduleStep]]:
    """Two layers and op 4, which reads the parameter and updates a buffer."""
    graph, costs = graph_of(two_layers(), views=False)
    steps = opened(graph, costs, [0, 1, 2, 3])
    owner = graph.gradients[0].value
    buffer = GraphValue(len(graph.values), "buffer", [1], [1], 0, "uint8", len(graph.storages))
    graph = with_fields(
        graph, values=[*graph.values, buffer], storages=[*graph.storages, buffer.shape[0]]
    )
    reads = encode_arguments([{"value": buffer.id}, {"value": owner}], {})
    op = with_fields(
        graph.ops[3],
        id=4,
        target="aten.copy_.default",
        arguments=reads,
        inputs=[buffer.id, owner],
        outputs=[],
        writes=[buffer.id],
        in_place=[owner],
        repeatable=repeatable,
    )
    return *with_op(graph, costs, op), steps


def test_random_draws_keep_their_order() -> None:
    graph, costs = two_draws()
    simulate(graph, costs, opened(graph, costs, [0, 1, 2, 3, 4]))
    simulate(graph, costs, opened(graph, costs, [0, 1, 2, 3, 0, 1, 4]))
    refused(graph, costs, opened(graph, costs, [1, 0, 2, 3, 4]), r"op 0 .* draws after op 1")
    simulate(graph, costs, opened(graph, costs, [0, 1, 2, 3, 1, 0, 4]))


def test_a_random_state_is_saved_before_the_first_draw_and_once() -> None:
    graph, costs = two_draws()
    steps = opened(graph, costs, [0, 1, 2, 3, 0, 4])
    save = ScheduleStep(SaveRandomState(0))
    assert steps[0] == save
    refused(graph, costs, [save, *steps], "random state of op 0 is saved too late")
    late = [steps[1], save, *steps[2:]]
    refused(graph, costs, late, "random state of op 0 is saved too late")
    refused(
        graph, costs, [ScheduleStep(SaveRandomState(2)), *steps], "op 2 draws no random numbers"
    )
    for op in (5, NO_VALUE, -3):
        refused(graph, costs, [ScheduleStep(SaveRandomState(op)), *steps], f"there is no op {op}")


def test_only_a_saved_state_is_restored_or_freed() -> None:
    graph, costs = two_draws()
    steps = opened(graph, costs, [0, 1, 2, 3, 0, 4])
    freed = ScheduleStep(FreeRandomState(0))
    played = simulate(graph, costs, steps).steps
    place = steps.index(freed)
    assert played[place].live == played[place].peak == played[place - 1].live - 2
    unsaved = [step for step in steps[1:] if step != freed]
    refused(graph, costs, unsaved, "no random state is saved for op 0")
    refused(
        graph, costs, [steps[0], ScheduleStep(RestoreRandomState(0)), *steps[1:]], "no random state"
    )
    plain = opened(graph, costs, [0, 1, 2, 3, 4])
    refused(graph, costs, [*plain, freed], "no random state is saved for op 0")
    refused(graph, costs, [freed, *plain], "no random state is saved for op 0")
    leaked = [step for step in steps if step != freed]
    refused(graph, costs, leaked, "never freed")


def test_a_restored_state_serves_its_op_at_once() -> None:
    graph, costs = two_draws()
    steps = opened(graph, costs, [0, 1, 2, 3, 0, 1, 4])
    place = steps.index(ScheduleStep(RestoreRandomState(1)))
    other = [*steps[: place - 1], steps[place], steps[place - 1], *steps[place + 1 :]]
    refused(graph, costs, other, "not used at once")
    ended = steps[: place + 1]
    twice = [*ended, *steps[place:]]
    refused(graph, costs, twice, "not used at once")


def test_the_loss_runs_once() -> None:
    graph, costs = graph_of(two_layers(), views=False)
    steps = opened(graph, costs, [0, 1, 2, 3])
    place = steps.index(ScheduleStep(ComputeLoss(2)))
    refused(graph, costs, [*steps[:place], steps[place], *steps[place:]], "the loss runs again")
    refused(graph, costs, [*steps, steps[place]], "the loss runs again")


def test_what_the_loss_leaves_beyond_tangents_is_there_from_then_on() -> None:
    graph, costs = graph_of(two_layers(), views=False)
    steps = opened(graph, costs, [0, 1, 2, 3])
    loss = costs.of(graph, graph.ops[2])
    left = with_fields(loss, net=loss.net + 3, peak=loss.peak + 3)
    others = [row for row in costs.rows.values() if row != loss]
    more = simulate(graph, Costs([*others, left], costs.device), steps)
    plain = simulate(graph, costs, steps)
    place = steps.index(ScheduleStep(ComputeLoss(2)))
    grown = [step.live - before.live for step, before in zip(more.steps, plain.steps, strict=True)]
    assert grown == [0] * place + [3] * (len(steps) - place)


def test_an_op_that_must_run_once_does_not_run_again() -> None:
    graph, costs = graph_of(two_layers(), views=False)
    steps = opened(graph, costs, [0, 1, 2, 0, 3])
    assert simulate(graph, costs, steps).repeated == 1
    ops = [with_fields(op, repeatable=op.id != 0) for op in graph.ops]
    refused(with_fields(graph, ops=ops), costs, steps, r"op 0 \(aten.op0.default\) runs again")


def test_a_buffer_is_updated_exactly_once() -> None:
    graph, costs, steps = with_update()
    update = ScheduleStep(WriteBuffer(4))
    place = steps.index(ScheduleStep(Compute(3)))
    before, after = steps[:place], steps[place:]
    played = simulate(graph, costs, [*before, update, *after])
    plain = simulate(with_fields(graph, ops=graph.ops[:4]), costs, steps)
    assert (played.saved, played.forward_seconds) == (plain.saved, plain.forward_seconds) == (8, 2)
    refused(graph, costs, steps, r"the buffer updates \[4\] never run")
    refused(graph, costs, [*before, update, update, *after], r"op 4 .* runs again")
    compute = [*before, ScheduleStep(Compute(4)), *after]
    refused(graph, costs, compute, "op 4 .* is a write_buffer, not a compute")
    refused(graph, costs, [update, *steps], "of the backward runs before the loss")


def test_what_runs_once_in_the_forward_keeps_its_order_ahead_of_the_loss() -> None:
    graph, costs = two_draws()
    ops = [with_fields(op, random=False, repeatable=op.id > 1) for op in graph.ops]
    graph = with_fields(graph, ops=ops)
    simulate(graph, costs, opened(graph, costs, [0, 1, 2, 3, 4]))
    refused(graph, costs, opened(graph, costs, [1, 0, 2, 3, 4]), "op 0 .* runs after op 1")


@pytest.mark.parametrize("random", [False, True])
def test_what_runs_once_in_the_forward_does_not_run_after_the_loss(random: bool) -> None:
    graph, costs = graph_of(two_layers(), views=False)
    late = with_fields(graph.ops[0], id=4, inputs=[], outputs=[], in_place=[])
    late = with_fields(late, arguments=encode_arguments([], {}), random=random, repeatable=random)
    graph, costs = with_op(graph, costs, late)
    early = opened(graph, costs, [0, 1, 4, 2, 3])
    simulate(graph, costs, early)
    refused(
        graph, costs, opened(graph, costs, [0, 1, 2, 4, 3]), "op 4 .* forward runs after the loss"
    )


def test_what_others_hold_is_not_overwritten() -> None:
    graph, costs, steps = with_update()
    owner = graph.gradients[0].value
    place = steps.index(ScheduleStep(Compute(3)))
    update = ScheduleStep(WriteBuffer(4, in_place=owner))
    fixed = [*steps[:place], update, *steps[place:]]
    refused(graph, costs, fixed, f"op 4 .* overwrites value {owner}, which is held")
    problem = two_layers()
    problem.nodes[3] = with_fields(
        problem.nodes[3], reuses=[InPlaceVariant(0, 1.0, 0), InPlaceVariant(2, 1.0, 0)]
    )
    graph, costs = graph_of(problem, views=False)
    reused = [step for step in steps if step != ScheduleStep(Free(0))]
    reused[place] = ScheduleStep(Compute(3, in_place=0))
    assert simulate(graph, costs, reused).steps[-1].live == 12
    held = [*steps]
    held[place] = ScheduleStep(Compute(3, in_place=2))
    refused(graph, costs, held, "op 3 .* overwrites value 2, which is held")


def test_a_view_that_takes_the_bytes_of_what_it_views_is_refused() -> None:
    graph, costs = graph_of(two_layers(), views=True)
    view = next(op for op in graph.ops if graph.is_view(op))
    ops = [
        with_fields(op, in_place=[*op.in_place, 0]) if op.id == view.id else op for op in graph.ops
    ]
    rows = [*costs.rows.values()]
    rows.append(OpCost(op_cost_key(graph, view, 0), view.target, 0, 0.0, 0.0, 0, 0))
    steps = opened(graph, costs, [op.id for op in graph.ops if not graph.is_view(op)])
    making, over = ScheduleStep(Compute(view.id)), ScheduleStep(Compute(view.id, in_place=0))
    assert making in steps
    taken = [over if step == making else step for step in steps]
    costs = Costs(rows, costs.device)
    refused(with_fields(graph, ops=ops), costs, taken, "is a view of a storage that is not live")


def test_an_action_without_a_rule_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, costs = graph_of(two_layers(), views=False)
    steps = opened(graph, costs, [0, 1, 2, 3])
    monkeypatch.delitem(CHECK_OF_ACTION, Free)
    refused(graph, costs, steps, "free is not possible on one device")


def test_ids_out_of_range_are_refused() -> None:
    graph, costs = graph_of(two_layers(), views=False)
    for kind in (
        Compute,
        WriteBuffer,
        ComputeLoss,
        SaveRandomState,
        RestoreRandomState,
        FreeRandomState,
    ):
        refused(graph, costs, [ScheduleStep(kind(-1))], "there is no op -1")
        refused(graph, costs, [ScheduleStep(kind(4))], "there is no op 4")
    refused(graph, costs, [ScheduleStep(Free(-2))], "there is no value -2")
    count = len(graph.values)
    refused(graph, costs, [ScheduleStep(Free(count))], f"there is no value {count}")


def test_a_gradient_is_handed_over_once_it_is_made_and_before_it_is_freed() -> None:
    graph, costs = graph_of(two_layers(), views=False)
    steps = opened(graph, costs, [0, 1, 2, 3])
    handed = ScheduleStep(PassGradient(3))
    place = steps.index(ScheduleStep(Compute(3)))
    early = [*steps[:place], handed, *(step for step in steps[place:] if step != handed)]
    for accumulate in (False, True):
        refused(graph, costs, early, "the gradient 3 is not live", accumulate)
        unhanded = [step for step in steps if step != handed]
        lost = [*unhanded, ScheduleStep(Free(3))]
        refused(graph, costs, lost, "the gradient in value 3 is freed", accumulate)
        refused(graph, costs, unhanded, r"the gradients \[3\] are missing", accumulate)
    refused(graph, costs, [*steps, ScheduleStep(PassGradient(1))], "value 1 is no gradient left")


def test_contributions_are_added_in_their_order_to_a_first_that_is_there() -> None:
    graph, costs = three_parts()
    steps = opened(graph, costs, [0, 1, 2, 3, 4])
    first, second, third = (ScheduleStep(PassGradient(part)) for part in (2, 3, 4))
    assert [step for step in steps if isinstance(step.action, PassGradient)] == [
        second,
        third,
        first,
    ]
    played = simulate(graph, costs, steps)
    assert (played.peak, played.steps[-1].live) == (4 * 4, 3 * 4)
    assert simulate(graph, costs, steps, accumulate=True).steps[-1].live == 2 * 4
    made = [step for step in steps if not isinstance(step.action, PassGradient)]
    for order, match in [
        ([third, second, first], "contribution 4 is handed over before 3"),
        ([first, second, third], r"gradient 2 lacks contributions \[3, 4\]"),
        ([second, first, third], r"gradient 2 lacks contributions \[4\]"),
        ([second, third], r"the gradients \[2\] are missing"),
        ([second, first], r"gradient 2 lacks contributions \[4\]"),
    ]:
        refused(graph, costs, [*made, *order], match)
    forward, loss, *parts = made
    other = [forward, loss, parts[1], parts[0], parts[2], second, third, first]
    refused(graph, costs, other, "op 3 .* makes a part of a gradient ahead of op 2, which makes")
    dropped = [*parts[:2], second, parts[1], parts[2], third, first]
    refused(graph, costs, [forward, loss, *dropped], r"op 3 .* runs again")


def test_a_first_contribution_is_read_no_more_once_others_were_added() -> None:
    graph, costs = three_parts()
    steps = opened(graph, costs, [0, 1, 2, 3, 4])
    reads = encode_arguments([{"value": 2}], {})
    reader = with_fields(graph.ops[4], id=5, arguments=reads, inputs=[2], outputs=[])
    graph, costs = with_op(graph, costs, reader)
    read = ScheduleStep(Compute(5))
    place = steps.index(ScheduleStep(PassGradient(3)))
    simulate(graph, costs, [*steps[:place], read, *steps[place:]])
    late = [*steps[: place + 1], read, *steps[place + 1 :]]
    refused(graph, costs, late, "op 5 .* reads value 2 after contributions were added")


def test_the_shorter_form_of_a_second_run_overwrites_nothing() -> None:
    graph, costs = batch_norm()
    first, second = ScheduleStep(Compute(0)), ScheduleStep(Compute(1))
    ends = [ScheduleStep(Free(value)) for value in (0, 5, 6, 7)]
    played = simulate(graph, costs, [first, second, ends[1], second, *ends])
    assert [step.end for step in played.steps[:4]] == [1.0, 2.0, 2.0, 2.25]
    assert [step.live for step in played.steps[:4]] == [16, 40, 24, 40]
    assert (played.repeated, played.repeated_seconds, played.peak) == (1, 0.25, 40)
    over = ScheduleStep(Compute(1, in_place=0))
    assert simulate(graph, costs, [first, over, *ends[1:]]).peak == 24
    again = [first, second, ends[1], over, *ends[1:]]
    refused(graph, costs, again, "op 1 .* overwrites nothing when it runs again")


def test_an_alternative_runs_after_its_origin_and_takes_its_own_time() -> None:
    graph, costs = two_ways()
    steps = opened(graph, costs, [0, 1, 2, 5, 3, 4])
    played = simulate(graph, costs, steps)
    assert (played.repeated, played.repeated_seconds) == (1, 0.25)
    assert ScheduleStep(Free(1)) in steps[: steps.index(ScheduleStep(ComputeLoss(2)))]
    refused(
        graph, costs, [ScheduleStep(Compute(5))], r"op 5 \(aten.other5.default\) runs ahead of op 0"
    )
    refused(
        graph,
        costs,
        [ScheduleStep(Compute(0)), ScheduleStep(Compute(5))],
        "makes value 1, which is live",
    )
    refused(graph, costs, [ScheduleStep(Compute(0)), ScheduleStep(Compute(6))], "there is no op 6")
    gone = [ScheduleStep(action) for action in (Compute(0), Free(0), Free(1), Compute(5))]
    refused(graph, costs, gone, "reads value 0, which is not live")
