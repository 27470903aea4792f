"""What may leave for another memory."""

from __future__ import annotations

from tightfit.schemas.graph import LOSS_TARGET, NONE, Graph, Value
from tightfit.schemas.problem import Problem


def leaving(graph: Graph, problem: Problem) -> dict[int, int]:
    """By storage that may leave, the value by which it is sent and comes back.

    What the caller holds stays, and so do gradients. A storage is brought back as one value: of one
    that ops made several values in, none but views of each other, nothing is said. A tangent that
    does not lie dense stays: what arrives in its place can be as large as anything.
    """
    whole: dict[int, list[int]] = {}
    for op in graph.ops:
        if graph.is_view(op):
            continue
        for value in op.outputs:
            if value != NONE and (op.target != LOSS_TARGET or _is_dense(graph.values[value])):
                whole.setdefault(graph.values[value].storage, []).append(value)
    known = range(len(problem.storages))
    return {
        storage: values[0]
        for storage, values in whole.items()
        if storage in known and len(values) == 1 and _may(problem, storage)
    }


def _is_dense(value: Value) -> bool:
    """Whether a value has each element of what it reaches over once."""
    reach = 1
    for stride, size in sorted(zip(value.strides, value.shape, strict=True)):
        if size > 1 and stride != reach:
            return False
        reach *= size
    return True


def _may(problem: Problem, storage: int) -> bool:
    found = problem.storages[storage]
    return found.producer >= 0 and found.bytes > 0 and not found.stays
