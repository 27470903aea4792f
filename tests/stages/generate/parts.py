"""Graphs whose gradients arrive in parts: what autograd would add, the graph no longer does."""

from __future__ import annotations

from dataclasses import replace

from schemas.graph import Gradient, Graph


def in_parts(graph: Graph) -> Graph:
    """The graph without the additions that end in a gradient: their operands are contributions."""
    maker = {value: op for op in graph.ops for value in op.outputs}
    dropped: set[int] = set()
    gradients: list[Gradient] = []

    def parts(value: int) -> list[int]:
        op = maker[value]
        if op.target != "aten.add.Tensor" or len(op.inputs) != 2:
            return [value]
        dropped.add(op.id)
        return [*parts(op.inputs[0]), op.inputs[1]]

    for gradient in graph.gradients:
        gradients += [Gradient(gradient.value, part) for part in parts(gradient.gradient)]
    kept = [op for op in graph.ops if op.id not in dropped]
    ops = [replace(op, id=number) for number, op in enumerate(kept)]
    return replace(graph, ops=ops, gradients=gradients)
