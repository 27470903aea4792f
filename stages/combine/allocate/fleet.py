"""The devices of a machine as the allocators see them: equal ones, with equal links."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import combinations, pairwise
from pathlib import Path

from tightfit.schemas.errors import ConfigError
from tightfit.schemas.machine import Link, Machine
from tightfit.stages.combine.allocate.layers import NO_LIMIT, Wire


@dataclass(frozen=True)
class Fleet:
    """Names of devices, the bytes that each has, and the wire of any link between two."""

    names: tuple[str, ...]
    memory: int
    wire: Wire


def fleet_of(machine: Machine, path: Path | str, contiguous: bool) -> Fleet:
    """The devices of a machine. Raises ConfigError, which names the file, where devices or links
    differ, have an overhead, or where two devices lack a link that is needed: those next to each
    other in the list where allocations are `contiguous`, else any two."""
    names = tuple(device.name for device in machine.devices)
    memories = sorted({device.memory for device in machine.devices})
    if len(memories) > 1:
        raise ConfigError(
            f"{path}: its devices have from {memories[0]} to {memories[-1]} bytes of memory, and "
            "pipelines are planned for equal ones"
        )
    if memories[0] >= NO_LIMIT:
        raise ConfigError(f"{path}: {memories[0]} bytes of memory are more than any device has")
    needed = list(pairwise(names)) if contiguous else list(combinations(names, 2))
    return Fleet(names, memories[0], _wire(machine.links, needed, path))


def _wire(links: Iterable[Link], needed: list[tuple[str, str]], path: Path | str) -> Wire:
    by_ends: dict[frozenset[str], Link] = {}
    for link in links:
        ends = frozenset(link.between)
        if ends in by_ends:
            raise ConfigError(f"{path}: has two links between {' and '.join(link.between)}")
        by_ends[ends] = link
    wires = set()
    for one, other in needed:
        found = by_ends.get(frozenset((one, other)))
        if found is None:
            raise ConfigError(f"{path}: has no link between {one} and {other}")
        if found.bandwidth == 0:
            raise ConfigError(f"{path}: the link between {one} and {other} has no bandwidth")
        if found.overhead or found.overhead_per_byte:
            raise ConfigError(
                f"{path}: the link between {one} and {other} has an overhead, and pipelines are "
                "planned for links without: leave it out"
            )
        wires.add(Wire(found.bandwidth, found.latency))
    if len(wires) > 1:
        slow, fast = min(wire.bandwidth for wire in wires), max(wire.bandwidth for wire in wires)
        raise ConfigError(
            f"{path}: its links differ (from {slow:g} to {fast:g} bytes a second), and pipelines "
            "are planned for equal ones"
        )
    return next(iter(wires), Wire(math.inf))
