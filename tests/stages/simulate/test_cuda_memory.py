"""What a step takes of a GPU: by hand, and beside what the simulator says of requested bytes."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.stages.combine.problems import problems, sequences
from tests.stages.simulate.problem_graphs import graph_of
from tightfit.schemas.costs import Costs, OpAllocations
from tightfit.schemas.graph.planning_graph import PlanningGraph, PlanningNode, PlanningStorage
from tightfit.schemas.graph.training_graph import Graph
from tightfit.stages.combine.lowering.schedule import lower_to_schedule
from tightfit.stages.simulate.allocator_settings import MIB
from tightfit.stages.simulate.caching_allocator import AllocatorBytes
from tightfit.stages.simulate.cuda_memory import (
    CudaMemory,
    minimize_reserved_memory,
    simulate_cuda_memory,
)
from tightfit.stages.simulate.liveness import simulate_executions
from tightfit.stages.simulate.simulate import simulate
from tightfit.util.errors import ConfigError


def step(*sizes: int, peak: int = 0) -> tuple[Graph, Costs]:
    """A forward of an op for each size, which reads the one before it; the loss; and a backward op
    that reads them all. The forward ops take `peak` bytes beyond their outputs."""
    nodes = [
        PlanningNode(op, "forward", 1.0, size + peak, [op - 1] if op else [], [op], [], False, True)
        for op, size in enumerate(sizes)
    ]
    last = len(sizes)
    nodes.append(PlanningNode(last, "loss", 0.0, 4, [last - 1], [last], [], False, False))
    read = list(range(last + 1))
    nodes.append(PlanningNode(last + 1, "backward", 1.0, 4, read, [last + 1], [], False, True))
    storages = [PlanningStorage(size, op, op == last - 1, False) for op, size in enumerate(sizes)]
    storages += [PlanningStorage(4, last, True, False), PlanningStorage(4, last + 1, False, True)]
    return graph_of(PlanningGraph(nodes, storages, 0), views=False)


def taken(graph: Graph, costs: Costs, build: str = "") -> CudaMemory:
    """What the captured order takes."""
    steps = lower_to_schedule(graph, costs, [op.id for op in graph.ops], False)
    return simulate_cuda_memory(
        graph, Costs(costs.rows.values(), replace(costs.device, build=build)), steps
    )


def measured(costs: Costs, target: str, moves: list[int], *lasting: list[int]) -> Costs:
    """Costs in which the allocations of an op are known."""
    rows = [
        replace(row, allocations=OpAllocations(moves, *lasting)) if row.target == target else row
        for row in costs.rows.values()
    ]
    return Costs(rows, costs.device)


def test_blocks_are_rounded_and_segments_too() -> None:
    """The parameter has a byte, the tangent and the gradient four: three blocks of 512 bytes."""
    graph, costs = step(700, 3 * MIB)
    found = taken(graph, costs)
    assert found.most.requested == 1 + 700 + 3 * MIB + 4 + 4
    assert found.most.allocated == 512 + 1024 + 3 * MIB + 512 + 512
    assert found.most.reserved == 22 * MIB
    assert found.workspaces == 0


def test_what_an_op_takes_beside_its_output_is_a_block_of_its_own() -> None:
    """The output of the second op is cut from the free block of the first, so that the second needs
    a segment more."""
    graph, costs = step(700, 3 * MIB, peak=30 * MIB)
    most = taken(graph, costs).most
    assert most == AllocatorBytes(1 + 700 + 33 * MIB, 512 + 1024 + 33 * MIB, (2 + 30 + 30) * MIB)


def test_allocations_that_were_measured_are_taken_in_their_order() -> None:
    """Two blocks of 16 MiB at a time are two segments, beside which the output has one of its own;
    one after the other the output is cut from the first."""
    graph, costs = step(700, 3 * MIB, peak=32 * MIB)
    costs, size = measured(costs, "aten.op0.default", [700], []), 16 * MIB
    together = measured(costs, "aten.op1.default", [size, size, 3 * MIB, -1, -2], [])
    apart = measured(costs, "aten.op1.default", [size, -1, 3 * MIB, size, -3], [])
    assert taken(graph, together).most.reserved == (2 + 16 + 16 + 20) * MIB
    found = taken(graph, apart).most
    assert found.requested == 1 + 700 + 19 * MIB
    assert found.reserved == (2 + 16 + 16) * MIB


def test_an_output_whose_block_was_not_measured_is_taken_all_the_same() -> None:
    graph, costs = step(700, 3 * MIB)
    odd = measured(costs, "aten.op1.default", [2 * MIB], [])
    assert taken(graph, odd).most.requested == 1 + 700 + 5 * MIB


def test_libraries_keep_workspaces_once_in_each_thread() -> None:
    graph, costs = step(700, 3 * MIB)
    plain = taken(graph, costs)
    size = 8 * MIB
    for target in ("aten.op0.default", "aten.op1.default"):
        costs = measured(costs, target, [700 if "op0" in target else 3 * MIB], [size])
    forward = taken(graph, costs)
    assert forward.workspaces == size
    assert forward.most.requested == plain.most.requested + size
    both = taken(graph, measured(costs, "aten.op3.default", [4], [size]))
    assert both.workspaces == 2 * size
    assert both.most.requested == plain.most.requested + 2 * size


def test_a_loss_is_played_with_its_own_allocations() -> None:
    """Its two blocks of 30 MiB one after the other take the place of one, at a time they take two;
    what stays beside the tangent is there to the end of the step."""
    graph, costs = step(700, 3 * MIB)
    size = 30 * MIB
    apart = measured(costs, "tightfit.loss", [size, -1, size, -2, 4], [])
    together = measured(costs, "tightfit.loss", [size, size, -2, -1, 4], [])
    staying = measured(costs, "tightfit.loss", [size, 4], [])
    assert taken(graph, apart).most.reserved == (2 + 20 + 30) * MIB
    assert taken(graph, together).most.reserved == (2 + 20 + 30 + 30) * MIB
    plain = taken(graph, costs).most.requested
    assert taken(graph, staying).most.requested == plain + size


def test_the_backward_of_a_loss_has_the_workspaces_of_autograds_thread() -> None:
    graph, costs = step(700, 3 * MIB)
    size = 8 * MIB
    costs = measured(costs, "aten.op0.default", [700], [size])
    costs = measured(costs, "aten.op3.default", [4], [size])
    both = measured(costs, "tightfit.loss", [4], [size], [size])
    assert taken(graph, both).workspaces == taken(graph, costs).workspaces == 2 * size
    other = measured(costs, "tightfit.loss", [4], [], [3 * size])
    assert taken(graph, other).workspaces == 5 * size


def test_the_second_step_finds_what_the_first_has_left() -> None:
    """A workspace is cut from the block that the first op has given back, so that the op needs
    another one in the next step."""
    graph, costs = step(700, 3 * MIB)
    costs = measured(costs, "aten.op0.default", [700, 30 * MIB, -2], [])
    costs = measured(costs, "aten.op1.default", [3 * MIB], [25 * MIB])
    assert taken(graph, costs).most.reserved == (2 + 30 + 30) * MIB


def test_libraries_may_keep_several_workspaces_of_a_size() -> None:
    graph, costs = step(700, 3 * MIB)
    size = 8 * MIB
    costs = measured(costs, "aten.op0.default", [700], [size])
    assert taken(
        graph, measured(costs, "aten.op1.default", [3 * MIB], [size, size])
    ).workspaces == (2 * size)


def test_the_settings_are_those_of_the_costs() -> None:
    graph, costs = step(700, 3 * MIB)
    build = "2.13, CUBLAS_WORKSPACE_CONFIG=:4096:8, PYTORCH_ALLOC_CONF=large_segment_size_mb:40"
    assert taken(graph, costs, build).most.reserved == (2 + 40) * MIB
    with pytest.raises(ConfigError, match="have garbage_collection_threshold"):
        taken(graph, costs, "2.13, PYTORCH_ALLOC_CONF=garbage_collection_threshold:0.5")


def inputs_of(graph: Graph, *sizes: int) -> Graph:
    """The graph with inputs of its own."""
    first = len(graph.storages)
    made = [
        replace(graph.values[0], id=len(graph.values) + at, storage=first + at, kind="input")
        for at in range(len(sizes))
    ]
    return replace(
        graph, values=[*graph.values, *made], storages=[*graph.storages, *sizes]
    )  # fmt: skip


def test_new_inputs_are_made_while_the_old_ones_are_there() -> None:
    """Two of 15 MiB at a time are cut from the segments of 20 and 30 MiB that a step has left, of
    which the second is then not whole: the next step needs another one."""
    graph, costs = step(700, 30 * MIB)
    fixed = taken(graph, costs)
    assert fixed.renewed == fixed.most.reserved == 32 * MIB
    found = taken(inputs_of(graph, 15 * MIB), costs)
    assert found.most.reserved == (32 + 16) * MIB
    assert found.renewed == (32 + 16 + 30) * MIB
    graph, costs = step(700, 3 * MIB)
    found = taken(inputs_of(graph, 40 * MIB), costs)
    assert found.most.reserved == (2 + 20 + 40) * MIB
    assert found.renewed == found.most.reserved + 40 * MIB


def test_a_segment_taken_ahead_serves_blocks_of_many_sizes() -> None:
    """Three blocks of 30 MiB one after the other with ones of 50: without it, two segments of each
    size; from one segment of what is requested they are all cut."""
    graph, costs = step(700, 3 * MIB)
    size, other = 30 * MIB, 50 * MIB
    moves = [size, size, -1, -2, other, -3, 3 * MIB]
    costs = measured(costs, "aten.op1.default", moves, [])
    steps = lower_to_schedule(graph, costs, [op.id for op in graph.ops], False)
    plain = simulate_cuda_memory(graph, costs, steps)
    ahead = simulate_cuda_memory(graph, costs, steps, 60 * MIB)
    assert plain.most.reserved == (2 + 30 + 30 + 50) * MIB
    assert ahead.most.reserved == (2 + 60) * MIB
    assert ahead.most.requested == plain.most.requested
    best = minimize_reserved_memory(graph, costs, steps)
    assert best.renewed <= ahead.renewed and best.arena
    assert minimize_reserved_memory(graph, costs, steps, plain.renewed) == plain


def test_a_segment_ahead_is_of_no_use_where_segments_grow() -> None:
    graph, costs = step(700, 3 * MIB)
    costs = measured(costs, "aten.op1.default", [30 * MIB, -1, 50 * MIB, -2, 3 * MIB], [])
    device = replace(costs.device, build="2.13, PYTORCH_ALLOC_CONF=expandable_segments:True")
    costs = Costs(costs.rows.values(), device)
    steps = lower_to_schedule(graph, costs, [op.id for op in graph.ops], False)
    assert minimize_reserved_memory(graph, costs, steps).arena == 0


@settings(max_examples=150, deadline=None)
@given(problems(), st.booleans(), st.booleans(), st.data())
def test_requested_bytes_are_those_of_the_referee(
    problem: PlanningGraph, views: bool, in_place: bool, data: st.DataObject
) -> None:
    """With the parameters, which the simulator does not count."""
    sequence = data.draw(sequences(problem))
    graph, costs = graph_of(problem, views)
    nodes = [problem.nodes[run.node].op for run in simulate_executions(problem, sequence, in_place)]
    ops = [op.id for op in graph.ops if not graph.is_view(op)]
    steps = lower_to_schedule(graph, costs, [ops[node] for node in nodes], in_place)
    there = sum(graph.storages[storage] for storage in graph.baseline_storages())
    found = simulate_cuda_memory(graph, costs, steps)
    assert found.most.requested == there + simulate(graph, costs, steps).peak
    assert found.most.requested <= found.most.allocated <= found.most.reserved
