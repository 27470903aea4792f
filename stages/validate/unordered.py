"""Models whose own results differ from run to run on the CPU, and the operators to blame."""

from __future__ import annotations

from tightfit.schemas.arguments import decode_arguments
from tightfit.schemas.graph import Graph, Op

_PUTS = ("aten.index_put.default", "aten._unsafe_index_put.default")


def unordered(graph: Graph) -> list[str]:
    """The operators of a step that several threads of a CPU add up in no fixed order."""
    return sorted({op.target for op in graph.ops if op.target in _PUTS and _accumulates(op)})


def _accumulates(op: Op) -> bool:
    args, kwargs = decode_arguments(op.arguments)
    return bool(args[3] if len(args) > 3 else kwargs.get("accumulate", False))
