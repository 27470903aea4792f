"""The strides in which autograd would hand over a gradient that the step copies for its owner."""

from __future__ import annotations

from tightfit.schemas.graph import Graph, Op

_COPY = "aten.clone.default"
_TURN = "aten.permute.default"


def eager_strides(graph: Graph, slices: list[list[int]]) -> list[list[tuple[int, ...] | None]]:
    """For each gradient (NONE: there is none) of each slice the strides that it has in eager before
    it is accumulated, None where they are its own."""
    maker = graph.makers()
    return [[_before(graph, maker, value) for value in part] for part in slices]


def _before(graph: Graph, maker: dict[int, Op], gradient: int) -> tuple[int, ...] | None:
    """A copy for a dense owner is one op; for one of another order it is turned there and back."""
    back = _operand(maker, gradient, _TURN)
    source = _operand(maker, gradient if back is None else back, _COPY)
    if source is not None and back is not None:
        source = _operand(maker, source, _TURN)
    if source is None:
        return None
    own, before = graph.values[gradient], graph.values[source]
    if before.shape != own.shape:
        return None
    zipped = zip(own.shape, own.strides, before.strides, strict=True)
    differs = any(size > 1 and one != other for size, one, other in zipped)
    return tuple(before.strides) if differs else None


def _operand(maker: dict[int, Op], value: int, target: str) -> int | None:
    """What a value is made of, where an op of this target makes it."""
    op = maker.get(value)
    return op.inputs[0] if op is not None and op.target == target and op.inputs else None
