"""The parameters of a graph that can live in an offload target."""

from __future__ import annotations

import math
from collections import Counter

from tightfit.schemas.graph.tensor_layout import DTYPE_BYTES, is_contiguous
from tightfit.schemas.graph.training_graph import BASELINE_KINDS, Graph, GraphValue

MIN_OFFLOAD_BYTES = 1 << 20
"""Parameters of fewer bytes stay on the device."""


def offloadable_parameters(graph: Graph, least: float, moves: bool) -> dict[int, int]:
    """The parameters of at least `least` bytes that can live in an offload target, by storage, in
    the order of their first use; those that can be moved there, where such a step is run."""
    found: dict[int, int] = {}
    may = _movable_parameters(graph) if moves else frozenset(range(len(graph.values)))
    for op in graph.ops:
        for value in op.inputs:
            described = graph.values[value]
            if described.kind != "parameter" or value not in may:
                continue
            if graph.storages[described.storage] >= least:
                found.setdefault(described.storage, value)
    return found


def _movable_parameters(graph: Graph) -> frozenset[int]:
    """The parameters of numbers with fractions that have all bytes of a storage for themselves, in
    the order of their dimensions, and are no outputs. Autograd gives one that is not there its
    gradient in that order, and where the elements lie otherwise it is copied."""
    outputs = {graph.values[value].storage for value in graph.output_values()}
    kept = [value for value in graph.values if value.kind in BASELINE_KINDS]
    holders = Counter(value.storage for value in kept)
    return frozenset(
        value.id
        for value in kept
        if value.kind == "parameter"
        and value.dtype.startswith(("float", "bfloat", "complex"))
        and value.storage not in outputs
        and holders[value.storage] == 1
        and value.offset == 0
        and value_bytes(value) == graph.storages[value.storage]
        and is_contiguous(value.shape, value.strides)
    )


def value_bytes(value: GraphValue) -> int:
    """The bytes of a value's elements."""
    return math.prod(value.shape) * DTYPE_BYTES[value.dtype]
