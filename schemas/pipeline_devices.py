"""The devices of a machine as pipelines are planned for them: equal ones with equal links."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import combinations, pairwise
from pathlib import Path

from tightfit.schemas.machine import Machine, MachineLink
from tightfit.util.errors import ConfigError

MAX_DEVICE_BYTES = 1 << 59
"""Bytes that no device has, of which several still add up in 64 bits."""


@dataclass(frozen=True)
class PipelineLink:
    """How fast a link is: bytes a second, and seconds that any transfer takes."""

    bandwidth: float = math.inf
    latency: float = 0.0

    def seconds(self, size: int) -> float:
        """How long a transfer takes."""
        return self.latency + size / self.bandwidth


@dataclass(frozen=True)
class PipelineDevices:
    """Names of devices, the bytes that each has, and the wire of any link between two."""

    names: tuple[str, ...]
    memory: int
    link: PipelineLink


def check_uniform_devices(machine: Machine, path: Path | str, contiguous: bool) -> PipelineDevices:
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
    if memories[0] >= MAX_DEVICE_BYTES:
        raise ConfigError(f"{path}: {memories[0]} bytes of memory are more than any device has")
    needed = list(pairwise(names)) if contiguous else list(combinations(names, 2))
    return PipelineDevices(names, memories[0], _uniform_link(machine.links, needed, path))


def _uniform_link(
    links: Iterable[MachineLink], needed: list[tuple[str, str]], path: Path | str
) -> PipelineLink:
    by_ends: dict[frozenset[str], MachineLink] = {}
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
        wires.add(PipelineLink(found.bandwidth, found.latency))
    if len(wires) > 1:
        slow, fast = min(wire.bandwidth for wire in wires), max(wire.bandwidth for wire in wires)
        raise ConfigError(
            f"{path}: its links differ (from {slow:g} to {fast:g} bytes a second), and pipelines "
            "are planned for equal ones"
        )
    return next(iter(wires), PipelineLink(math.inf))
