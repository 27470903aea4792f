"""The bytes of a step that no plan changes."""

from __future__ import annotations

from collections.abc import Iterable

from tightfit.schemas.contributions import contributions
from tightfit.schemas.graph import NONE, Graph
from tightfit.schemas.plan import Fixed


def fixed_bytes(graph: Graph) -> Fixed:
    """The bytes of a step that no plan changes, each storage counted once."""

    def size(values: Iterable[int]) -> int:
        storages = {graph.values[value].storage for value in values if value != NONE}
        return sum(graph.storages[storage] for storage in storages)

    def of_kind(*kinds: str) -> int:
        return size(value.id for value in graph.values if value.kind in kinds)

    return Fixed(
        parameters=of_kind("parameter"),
        gradients=size(parts[0] for parts in contributions(graph).values()),
        buffers=of_kind("buffer", "constant"),
        inputs=of_kind("input"),
        outputs=size(output.value for output in graph.outputs),
    )
