"""Where in the offload target what a step sends has its place.

Places follow from the order of issue alone, so that the memory is taken once, whatever the speed.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from tightfit.schemas.actions import FreeHostCopy, Offload
from tightfit.schemas.graph.training_graph import Graph
from tightfit.schemas.schedule import ScheduleStep


@dataclass(frozen=True)
class OffloadLayout:
    """The bytes that a program takes of the offload target, and where what leaves at a position of
    the schedule begins there."""

    size: int
    begins: dict[int, int]


def offload_layout(
    graph: Graph, steps: Sequence[ScheduleStep], remote: Collection[int] = ()
) -> OffloadLayout:
    """The places of all copies of a schedule that the simulator accepts: each the first one that is
    free for as long as the copy is there. The storages `remote` have places of their own."""
    there: dict[int, tuple[int, int]] = {}
    begins: dict[int, int] = {}
    size = 0
    for position, step in enumerate(steps):
        match step.action:
            case Offload(value):
                storage = graph.values[value].storage
                if storage in remote:
                    continue
                bytes_ = graph.storages[storage]
                begin = _first_gap(sorted(there.values()), bytes_)
                there[storage] = (begin, begin + bytes_)
                begins[position] = begin
                size = max(size, begin + bytes_)
            case FreeHostCopy(value):
                del there[graph.values[value].storage]
    return OffloadLayout(size, begins)


def _first_gap(taken: Sequence[tuple[int, int]], size: int) -> int:
    """The first gap of a size between spans in order, or the end of the last one."""
    begin = 0
    for start, end in taken:
        if begin + size <= start:
            break
        begin = end
    return begin
