"""The memory of ops at other sizes than the largest, for predictions to the byte."""

from __future__ import annotations

from collections.abc import Iterator, Set

import torch

from tightfit.schemas.costs import OpCost
from tightfit.schemas.graph.dynamic_shapes import graph_at
from tightfit.schemas.graph.training_graph import LOSS_TARGET, Graph, Op
from tightfit.stages.profile.cost_library import CostLibrary, distinct_op_variants
from tightfit.stages.profile.loss import ZERO_TIMING, LossCallable, measure_loss
from tightfit.stages.profile.measure import make_cost, op_footprint, variant_calls
from tightfit.stages.torch_utils.memory_meter import memory_session


def memory_rows_at_sizes(
    graph: Graph, loss: LossCallable | None, library: CostLibrary, device: torch.device
) -> Iterator[OpCost]:
    """Rows for the ops of a graph with dynamic shapes at its `checked_sizes`, on the CPU.

    Their keys are those of the ops at these sizes, and their seconds are 0 unless the library has
    the op. Temporary memory follows no rule that is known beforehand, so each op is run once.
    """
    if graph.dynamic is None or device.type != "cpu":
        return
    known: set[str] = set()
    for sizes in graph.dynamic.checked_sizes():
        at_sizes = graph_at(graph, sizes)
        keys = distinct_op_variants(at_sizes).keys() - known
        found = [row for key in sorted(keys) if (row := library.find(key)) is not None]
        yield from found
        known |= keys
        yield from measure_memory_rows(at_sizes, loss, device, keys - {row.key for row in found})


def measure_memory_rows(
    graph: Graph, loss: LossCallable | None, device: torch.device, keys: Set[str] | None = None
) -> Iterator[OpCost]:
    """Rows, with seconds of 0, for the ops and in-place forms of a graph that have these keys, all
    if none are given; measured in one session."""
    by_op: dict[int, set[int]] = {}
    forms = distinct_op_variants(graph)
    forms = {key: form for key, form in forms.items() if keys is None or key in keys}
    for op, value in forms.values():
        by_op.setdefault(op.id, set()).add(value)
    limit = max(op_footprint(graph, op) for op in graph.ops)
    measured: list[tuple[Op, int]] = []
    with memory_session(device) as running:
        for number, values in by_op.items():
            op = graph.op(number)
            if op.target == LOSS_TARGET:
                continue
            for value, call in variant_calls(graph, op, values, device, limit):
                with running.section(f"{number} {value}"):
                    result = call()
                del result
                measured.append((op, value))
    for op, value in measured:
        usage = running.section_usage(f"{op.id} {value}")
        yield make_cost(graph, op, value, ZERO_TIMING, usage.peak, usage.net)
    if loss is not None and any(op.target == LOSS_TARGET for op, _ in forms.values()):
        yield measure_loss(graph, loss, None, device, timed=False)
