"""Which operators inductor fuses within a budget.

A kernel of two operators runs where both can: what the earlier one reads, or what the later one
reads and makes, lives longer then, so that the peak is above that of the order for which saved
values were chosen. Operators with others between them are fused only where that does not matter or
spares as many bytes of reads.
"""

from __future__ import annotations

import contextlib
import copy
from importlib import import_module
from typing import Any


class FusionWithinBudget:
    """What inductor asks before it fuses two operators, of which others may run between."""

    def can_fuse_horizontal(
        self, scheduler: Any, node1: Any, node2: Any, shared_data_score: int
    ) -> bool:
        """Whether two that do not read each other may be one kernel, which spares
        `shared_data_score` bytes of reads."""
        usual: bool = super().can_fuse_horizontal(  # type: ignore[misc]
            scheduler, node1, node2, shared_data_score
        )
        first, last = _in_order(node1, node2)
        if not usual or _are_adjacent(first, last):
            return usual
        moved = sum(each.numbytes_hint() for each in last.read_writes.reads_and_writes())
        return shared_data_score >= moved - shared_data_score

    def can_fuse_vertical(
        self, scheduler: Any, node1: Any, node2: Any, shared_data_score: int
    ) -> bool:
        """Whether one may be a kernel with its reader: not if it has other readers, so that what it
        makes is kept all the same, and what it reads would otherwise be free by then."""
        usual: bool = super().can_fuse_vertical(  # type: ignore[misc]
            scheduler, node1, node2, shared_data_score
        )
        first, last = _in_order(node1, node2)
        if not usual or _are_adjacent(first, last):
            return usual
        names = {node.get_name() for each in (first, last) for node in each.get_nodes()}

        def is_private(name: str) -> bool:
            buffer = scheduler.name_to_buf.get(name)
            return buffer is not None and all(
                user.node.get_name() in names for user in buffer.users
            )

        made = all(is_private(write.name) for write in first.read_writes.writes)
        return made or not any(is_private(read.name) for read in first.read_writes.reads)


def _in_order(node1: Any, node2: Any) -> tuple[Any, Any]:
    first, last = sorted((node1, node2), key=lambda node: node.min_order)
    return first, last


def _are_adjacent(first: Any, last: Any) -> bool:
    return bool(last.min_order <= first.max_order + 1)


def limit_fusion() -> contextlib.AbstractContextManager[None]:
    """Lets inductor ask `FusionWithinBudget` beside the choices that are set."""
    virtualized = import_module("torch._inductor.virtualized").V
    if isinstance(virtualized.choices, FusionWithinBudget):
        return contextlib.nullcontext()
    choices = copy.copy(virtualized.choices)
    usual = type(choices)
    choices.__class__ = type(usual.__name__, (FusionWithinBudget, usual), {})
    limit: contextlib.AbstractContextManager[None] = virtualized.set_choices_handler(choices)
    return limit
