"""The link between a device and the host's memory, as planners take it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from schemas.errors import ConfigError
from schemas.machine import Machine

HOST = "host"


@dataclass(frozen=True)
class HostLink:
    """A link of `bandwidth` bytes a second (0 for none, infinite for one that takes no time), with
    `latency` seconds a transfer; `shared` where both directions take turns. The host has `room`
    bytes for what leaves, and the device `memory` bytes in all; infinite where that is not said."""

    bandwidth: float
    latency: float = 0.0
    shared: bool = True
    room: float = math.inf
    device: str = "cuda:0"
    memory: float = math.inf

    def seconds(self, size: int) -> float:
        """What a transfer of `size` bytes takes, infinite where the bandwidth is 0."""
        if self.bandwidth == 0:
            return math.inf
        return self.latency + size / self.bandwidth

    def lane(self, leaves: bool) -> str:
        """The lane of a direction."""
        return f"{self.device}/to-host" if leaves else f"{self.device}/from-host"


def host_link(machine: Machine, path: Path | str) -> HostLink:
    """The link that a chain's activations take: from the machine's one device to the memory
    `host`, or to its only other memory.

    Raises ConfigError, which names the file, where there are several devices, no such memory or
    not one link to it.
    """
    if len(machine.devices) != 1:
        raise ConfigError(
            f"{path}: describes {len(machine.devices)} devices, and one is offloaded from"
        )
    device, memories = machine.devices[0], {memory.name: memory for memory in machine.memories}
    if HOST not in memories and len(memories) != 1:
        raise ConfigError(f"{path}: names no memory {HOST!r} to offload to")
    memory = memories[HOST if HOST in memories else next(iter(memories))]
    ends = {device.name, memory.name}
    found = [link for link in machine.links if set(link.between) == ends]
    if len(found) != 1:
        number = "no link" if not found else "several links"
        raise ConfigError(f"{path}: has {number} between {device.name} and {memory.name}")
    return HostLink(
        found[0].bandwidth,
        found[0].latency,
        found[0].shared,
        memory.memory,
        device.name,
        device.memory,
    )
