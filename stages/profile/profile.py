"""The costs of a graph: what the library knows, and measurements of the rest."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import torch

from tightfit.schemas.costs import Costs, OpCost
from tightfit.schemas.graph.dynamic_shapes import graph_at
from tightfit.schemas.graph.training_graph import LOSS_TARGET, NO_VALUE, Graph, Op
from tightfit.stages.profile.cost_library import RANDOM_STATE_KEY, CostLibrary, distinct_op_variants
from tightfit.stages.profile.loss import LossCallable, loss_library_key, measure_loss
from tightfit.stages.profile.measure import measure_op, measure_random_state, op_footprint
from tightfit.stages.profile.memory_at_sizes import memory_rows_at_sizes
from tightfit.stages.torch_utils.custom_operators import is_custom_operator
from tightfit.stages.torch_utils.devices import enter_device, parse_device, preserve_random_states
from tightfit.stages.torch_utils.fused_group_operators import register_groups
from tightfit.util.allocators import hold_heap_pages
from tightfit.util.errors import ConfigError, ModelError
from tightfit.util.progress import ProgressCallback

ALLOCATOR_ROUNDING_BYTES = 512
"""Bytes to whose multiples PyTorch's allocator on CUDA rounds up."""


def profile(
    graph: Graph,
    loss: LossCallable | None,
    library: CostLibrary,
    remeasure: bool = False,
    report: ProgressCallback | None = None,
    device: str = "",
) -> Costs:
    """The costs of all ops of a graph with their in-place forms, and of the random state.

    What the library has is taken from it, the rest is measured on `device` (the current one of the
    graph's kind unless given) and added to it; with `remeasure` all is measured. What the library
    has is trusted, however busy the machine was when it was measured: one store gives one graph the
    same costs at any time. Of a graph with dynamic shapes there are also rows for the memory at
    other sizes, which are no times, and those of the largest sizes of a second plan. The loss is
    run where the graph has one; the library knows the time of a loss with the same code, closures
    and all. Operators that are not PyTorch's own may
    change under their name: they are measured anew, and not learned. At no time is more
    memory taken than the largest op takes with its operands. Raises ConfigError when the graph has
    a loss and `loss` is None, ModelError when an op cannot be run or leaves other bytes than the
    graph says.
    """
    if graph.has_loss and loss is None:
        raise ConfigError(f"the graph of {graph.model} has a loss, its profile needs the factory")
    register_groups(graph)
    forms = distinct_op_variants(graph)
    losses = {key for key, (op, _) in forms.items() if op.target == LOSS_TARGET}
    plain = [key for key in forms if key not in losses]
    foreign = {key for key in plain if is_custom_operator(forms[key][0].target)}

    def anew(key: str) -> bool:
        return remeasure or library.find(key) is None

    wanted = [k for k in plain if k in foreign or anew(k)]
    by_op = _variants_by_op(forms, wanted)
    place = parse_device(device or graph.device)
    limit = max(op_footprint(graph, op) for op in graph.ops)
    measured: list[OpCost] = []
    rows: list[OpCost] = []
    with enter_device(place), preserve_random_states(), hold_heap_pages():
        torch.manual_seed(0)
        try:
            for done, (op_id, values) in enumerate(by_op.items()):
                op = graph.op(op_id)
                if report is not None:
                    report(done, len(by_op) + len(losses), op.target)
                measured += measure_op(graph, op, values, place, limit)
            if loss is not None and losses:
                if report is not None:
                    report(len(by_op), len(by_op) + 1, LOSS_TARGET)
                rows, kept = _measure_loss_rows(graph, loss, library, remeasure, place)
                measured += kept
            if anew(RANDOM_STATE_KEY):
                measured.append(measure_random_state(place))
            at_sizes = [*memory_rows_at_sizes(graph, loss, library, place)]
        finally:
            library.add(row for row in measured if row.key not in foreign)
    if graph.dynamic is not None and graph.dynamic.small_sizes:
        small = graph_at(graph, graph.dynamic.small_sizes)
        at_sizes += profile(small, loss, library, remeasure, report, device).rows.values()
    known = {row.key: row for row in measured} | library.costs.rows
    rows += [known[key] for key in [*plain, RANDOM_STATE_KEY]]
    costs = Costs([*at_sizes, *rows], library.costs.device)
    check_sizes(graph, costs)
    return costs


def check_sizes(graph: Graph, costs: Costs) -> None:
    """Raises ModelError naming the first op that leaves other bytes allocated than the storages
    have that the graph says it makes. On CUDA what the allocator rounds away does not count."""
    slack = ALLOCATOR_ROUNDING_BYTES if graph.device == "cuda" else 0
    for op in graph.all_ops:
        if op.target == LOSS_TARGET:
            continue
        read = {graph.values[value].storage for value in op.inputs}
        made = {graph.values[value].storage for value in op.outputs if value != NO_VALUE} - read
        size, measured = sum(graph.storages[storage] for storage in made), costs.of(graph, op).net
        if abs(measured - size) > slack * len(op.outputs):
            remedy = "use another operator there"
            if not op.inputs:
                remedy += ", or make what it gives once and register it as a buffer"
            raise ModelError(
                f"{op.target} of {graph.model}, at {op.source}, keeps {measured} bytes for results "
                f"of {size} bytes, so that no plan can count its memory: {remedy}"
            )


def _measure_loss_rows(
    graph: Graph,
    loss: LossCallable,
    library: CostLibrary,
    remeasure: bool,
    device: torch.device,
) -> tuple[list[OpCost], list[OpCost]]:
    """The row of the loss in the costs, and the row that the library shall have of it: none where
    it has that row, or where what the loss does cannot be told."""
    key = loss_library_key(graph, loss)
    known = None if key is None or remeasure else library.find(key)
    row = measure_loss(graph, loss, known, device)
    kept = [] if key is None else [replace(row, key=key)]
    return [row], [] if kept == [known] else kept


def _variants_by_op(forms: dict[str, tuple[Op, int]], keys: Iterable[str]) -> dict[int, set[int]]:
    """For each op that must run, the forms that are wanted of it."""
    wanted: dict[int, set[int]] = {}
    for key in keys:
        op, value = forms[key]
        wanted.setdefault(op.id, set()).add(value)
    return wanted
