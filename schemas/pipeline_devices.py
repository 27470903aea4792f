"""The devices of a machine, as pipelines take them: equal ones with equal links."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import combinations, pairwise
from pathlib import Path

from tightfit.schemas.machine import Machine, MachineLink
from tightfit.util.errors import ConfigError


@dataclass(frozen=True)
class UniformDevices:
    """Names of devices, the bytes of memory that each has, and a link that is like any between two
    of them; None where none is needed."""

    names: tuple[str, ...]
    memory: int
    link: MachineLink | None


def find_uniform_devices(machine: Machine, path: Path | str, contiguous: bool) -> UniformDevices:
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
    needed = list(pairwise(names)) if contiguous else list(combinations(names, 2))
    return UniformDevices(names, memories[0], _uniform_link(machine.links, needed, path))


def _uniform_link(
    links: Iterable[MachineLink], needed: list[tuple[str, str]], path: Path | str
) -> MachineLink | None:
    by_ends: dict[frozenset[str], MachineLink] = {}
    for link in links:
        ends = frozenset(link.between)
        if ends in by_ends:
            raise ConfigError(f"{path}: has two links between {' and '.join(link.between)}")
        by_ends[ends] = link
    speeds: dict[tuple[float, float], MachineLink] = {}
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
        speeds.setdefault((found.bandwidth, found.latency), found)
    if len(speeds) > 1:
        slow, fast = min(speeds)[0], max(speeds)[0]
        raise ConfigError(
            f"{path}: its links differ (from {slow:g} to {fast:g} bytes a second), and pipelines "
            "are planned for equal ones"
        )
    return next(iter(speeds.values()), None)
