"""What may leave for another memory."""

from __future__ import annotations

from schemas.graph import NONE, Graph
from schemas.problem import Problem


def leaving(graph: Graph, problem: Problem) -> dict[int, int]:
    """By storage that may leave, the value by which it is sent and comes back.

    What the caller holds stays, and so do gradients. A storage is brought back as one value: of one
    that ops made several values in, none but views of each other, nothing is said.
    """
    whole: dict[int, list[int]] = {}
    for op in graph.ops:
        if graph.is_view(op):
            continue
        for value in op.outputs:
            if value != NONE:
                whole.setdefault(graph.values[value].storage, []).append(value)
    known = range(len(problem.storages))
    return {
        storage: values[0]
        for storage, values in whole.items()
        if storage in known and len(values) == 1 and _may(problem, storage)
    }


def _may(problem: Problem, storage: int) -> bool:
    found = problem.storages[storage]
    return found.producer >= 0 and found.bytes > 0 and not found.stays
