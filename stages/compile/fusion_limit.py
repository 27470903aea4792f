"""How far from each other operators may be that inductor fuses within a budget.

A kernel of two operators runs where both can: what the earlier one reads, or what the later one
reads and makes, lives longer then, so that the peak may be above that of the order for which saved
values were chosen. Where inductor's own estimate of the peak of its kernels is above what a graph
may take, its operators are fused again with fewer others between them.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator
from importlib import import_module
from math import inf
from typing import Any

from torch.utils._ordered_set import OrderedSet

DISTANCES = (inf, 16, 4, 1)
"""How many operators on the later of two may be, tried in turn."""


class NearFusion:
    """Choices of inductor that fuse operators up to a distance in their order."""

    distance = inf

    def can_fuse_horizontal(self, scheduler: Any, node1: Any, node2: Any, score: int) -> bool:
        """Whether two that do not read each other may be one kernel."""
        usual: bool = super().can_fuse_horizontal(  # type: ignore[misc]
            scheduler, node1, node2, score
        )
        return usual and self._are_near(node1, node2)

    def can_fuse_vertical(self, scheduler: Any, node1: Any, node2: Any, score: int) -> bool:
        """Whether one may be a kernel with its reader."""
        usual: bool = super().can_fuse_vertical(  # type: ignore[misc]
            scheduler, node1, node2, score
        )
        return usual and self._are_near(node1, node2)

    def _are_near(self, node1: Any, node2: Any) -> bool:
        first, last = sorted((node1, node2), key=lambda node: node.min_order)
        return bool(last.min_order - first.max_order <= self.distance)


def limit_fusion(
    peak_limit: Callable[[bool], int | None], note_excess: Callable[[int], None]
) -> None:
    """Lets the kernels that inductor makes keep to a limit, where it is not below what they take
    without fusion, from now on.

    Args:
        peak_limit: Gives the bytes that the graph being compiled may take at most, as inductor
            counts them: with the inputs that are freed within it, without parameters. It is called
            with whether that graph is a backward. None leaves the graph as it is.
        note_excess: Is told by how many bytes a graph is above its limit.
    """
    lowering = import_module("torch._inductor.graph").GraphLowering
    if hasattr(lowering.codegen, "of_tightfit"):
        return
    codegen = lowering.codegen

    def codegen_within_limit(graph: Any) -> Any:
        limit = peak_limit(graph.is_backward)
        if limit is None:
            return codegen(graph)
        with _within_limit(graph, limit, note_excess):
            return codegen(graph)

    codegen_within_limit.of_tightfit = True  # type: ignore[attr-defined]
    lowering.codegen = codegen_within_limit


@contextlib.contextmanager
def _within_limit(graph: Any, limit: int, note_excess: Callable[[int], None]) -> Iterator[None]:
    """Within it the kernels of a graph keep to a limit."""
    virtualized = import_module("torch._inductor.virtualized").V
    config = import_module("torch._inductor.config")
    choices = copy.copy(virtualized.choices)
    usual = type(choices)
    choices.__class__ = type(usual.__name__, (NearFusion, usual), {})
    update = graph._update_scheduler

    def update_within_limit() -> None:
        peaks: dict[float, int] = {}
        for choices.distance in DISTANCES:
            update()
            peaks[choices.distance] = _estimate_peak(graph)
            if peaks[choices.distance] <= limit:
                return
        best = min(peaks, key=lambda distance: peaks[distance])
        note_excess(peaks[best] - limit)
        if best != choices.distance:
            choices.distance = best
            update()

    graph._update_scheduler = update_within_limit
    # A buffer that is kept for another one of its size lives longer than is estimated.
    with config.patch(allow_buffer_reuse=False), virtualized.set_choices_handler(choices):
        yield


def _estimate_peak(graph: Any) -> int:
    """Inductor's estimate of the bytes that the kernels of a graph take at most."""
    scheduler = graph.scheduler
    peak: int
    peak, _ = import_module("torch._inductor.memory").prepare_planning_info(
        scheduler.nodes,
        scheduler.name_to_buf,
        scheduler.name_to_fused_node,
        OrderedSet(graph.graph_inputs),
        OrderedSet(graph.get_output_names()),
    )
    return peak
