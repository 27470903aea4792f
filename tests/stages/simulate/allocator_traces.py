"""Traces of allocations: by hand or from PyTorch's allocator, played by the simulated one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tightfit.stages.simulate.allocator_settings import AllocatorSettings
from tightfit.stages.simulate.caching_allocator import AllocatorBytes, CachingAllocator


@dataclass(frozen=True)
class AllocEvent:
    """Bytes that are asked for, under a name that no other live ones have."""

    id: int
    bytes: int


@dataclass(frozen=True)
class FreeEvent:
    """The bytes of a name are given back."""

    id: int


AllocatorEvent = AllocEvent | FreeEvent


@dataclass(frozen=True)
class AllocatorResult:
    """The most bytes of each kind at any moment, and those at the end."""

    peak: AllocatorBytes
    end: AllocatorBytes


def simulate_allocator(
    events: Iterable[AllocatorEvent],
    settings: AllocatorSettings | None = None,
    capacity: int | None = None,
) -> AllocatorResult:
    """Plays allocations and frees in their order.

    With a `capacity` in bytes, segments that are wholly free are given back where a new one would
    exceed it. Raises DoesNotFitError where that is not enough, ValueError where a name is
    allocated twice or freed without having been allocated.
    """
    allocator = CachingAllocator(settings or AllocatorSettings(), capacity)
    for event in events:
        if isinstance(event, AllocEvent):
            allocator.allocate(event.id, event.bytes)
        else:
            allocator.free(event.id)
    return AllocatorResult(allocator.peak, allocator.taken())


def trace_events(entries: Iterable[Mapping[str, Any]]) -> list[AllocatorEvent]:
    """The events of one device of `torch.cuda.memory._snapshot()["device_traces"]`."""
    events: list[AllocatorEvent] = []
    live: dict[int, int] = {}
    for number, entry in enumerate(entries):
        if entry["action"] == "alloc":
            live[entry["addr"]] = number
            events.append(AllocEvent(number, entry["size"]))
        elif entry["action"] == "free_completed" and entry["addr"] in live:
            events.append(FreeEvent(live.pop(entry["addr"])))
    return events


def trace_peak_reserved(entries: Iterable[Mapping[str, Any]]) -> int:
    """The most bytes that the segments of such a trace had, above those at its begin."""
    signs = {"segment_alloc": 1, "segment_map": 1, "segment_free": -1, "segment_unmap": -1}
    live = most = 0
    for entry in entries:
        live += signs.get(entry["action"], 0) * entry["size"]
        most = max(most, live)
    return most
