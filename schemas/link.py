"""The link between a device and an offload target, as planners take it and artifacts carry it."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tightfit.schemas.machine import Machine, MachineLink
from tightfit.util.errors import ArtifactError, ConfigError

HOST = "host"
MAX_SOURCE_CHARACTERS = 400
"""Characters of what is said of a link's speed."""
_OPTIONAL_FIELDS = ("source", "overhead", "overhead_per_byte")
"""What the text of a link leaves out where it has none: older ones have not got it."""


class TransferOverhead:
    """What has transfers that take something of the stream that computes: `overhead` seconds each,
    and `overhead_per_byte` more for each byte (o and O of LogGOPS)."""

    overhead: float
    overhead_per_byte: float

    def overhead_of(self, size: int) -> float:
        """What a transfer of `size` bytes takes of the stream that computes."""
        return self.overhead + size * self.overhead_per_byte


@dataclass(frozen=True)
class HostLink(TransferOverhead):
    """A link of `bandwidth` bytes a second (0 for none, infinite for one that takes no time), with
    `latency` seconds a transfer; `shared` where both directions take turns. The offload target,
    which is called `to` (the host's or a disk), has `room` bytes for what leaves, and the device
    `memory` bytes in all; infinite where that is not said. `source` tells people where its speed is
    from."""

    bandwidth: float
    latency: float = 0.0
    shared: bool = True
    room: float = math.inf
    device: str = "cuda:0"
    memory: float = math.inf
    to: str = HOST
    source: str = ""
    overhead: float = 0.0
    overhead_per_byte: float = 0.0

    def seconds(self, size: int) -> float:
        """What a transfer of `size` bytes takes, infinite where the bandwidth is 0."""
        if self.bandwidth == 0:
            return math.inf
        return self.latency + size / self.bandwidth

    @property
    def speed(self) -> str:
        """How fast it is, as text: alike for links over which all transfers take as long."""
        return f"{self.bandwidth!r} B/s, {self.latency!r} s"

    def stream(self, leaves: bool) -> str:
        """The stream of a direction."""
        return f"{self.device}/{'to' if leaves else 'from'}-{self.to}"

    @property
    def other(self) -> str:
        """The memory that it leads to, as schedules name it."""
        return f"{self.to}/memory"

    def text(self) -> str:
        """The link as JSON, with null for what is infinite."""
        figures = {
            name: None if figure == math.inf else figure for name, figure in asdict(self).items()
        }
        figures = {
            name: figure
            for name, figure in figures.items()
            if figure or name not in _OPTIONAL_FIELDS
        }
        return json.dumps(figures, sort_keys=True)


def read_host_link(machine: Machine, path: Path | str) -> HostLink:
    """The link that a chain's activations take: from the machine's one device to the memory
    `host`, or to its only offload target, those behind that aside.

    Raises ConfigError, which names the file, where there are several devices, no such memory or
    not one link to it.
    """
    if len(machine.devices) != 1:
        raise ConfigError(
            f"{path}: describes {len(machine.devices)} devices, and one is offloaded from"
        )
    device, memories = machine.devices[0], {memory.name: memory for memory in machine.memories}
    if HOST not in memories and len(memories) > 1:
        near = {
            end for link in machine.links if device.name in link.between for end in link.between
        }
        memories = {name: memory for name, memory in memories.items() if name in near}
    if HOST not in memories and len(memories) != 1:
        raise ConfigError(
            f"{path}: names no memory {HOST!r} to offload to: add to a copy of it "
            f'"memories": [{{"name": "{HOST}", "memory": BYTES}}], '
            f"{_link_example(device.name, HOST)}"
        )
    memory = memories[HOST if HOST in memories else next(iter(memories))]
    ends = {device.name, memory.name}
    found = [link for link in machine.links if set(link.between) == ends]
    if len(found) != 1:
        number = "several links" if found else "no link"
        more = "" if found else f": add {_link_example(device.name, memory.name)}"
        raise ConfigError(f"{path}: has {number} between {device.name} and {memory.name}{more}")
    return HostLink(
        room=memory.memory,
        device=device.name,
        memory=device.memory,
        to=memory.name,
        source=" ".join(machine.sources.get("links", "").split())[:MAX_SOURCE_CHARACTERS],
        **_figures(found[0]),
    )


def _figures(link: MachineLink) -> dict[str, Any]:
    """What a link between two memories has of a described one."""
    return {name: figure for name, figure in asdict(link).items() if name != "between"}


def _link_example(one: str, other: str) -> str:
    """A link as a description has it."""
    return f'"links": [{{"between": ["{one}", "{other}"], "bandwidth": BYTES_A_SECOND}}]'


def second_tier_link(machine: Machine, link: HostLink, path: Path | str) -> HostLink | None:
    """The link from the memory that a `link` leads to, to a third one behind it, such as a disk;
    None where there is none. Raises ConfigError, which names the file, where there are several, and
    where a memory would not be used."""
    memories = {memory.name: memory for memory in machine.memories}
    found = [each for each in machine.links if link.to in each.between]
    found = [each for each in found if set(each.between) <= memories.keys()]
    behind = sorted({end for each in found for end in each.between} - {link.to})
    if len(behind) > 1:
        raise ConfigError(
            f"{path}: {' and '.join(behind)} are linked with {link.to}, and one memory behind it "
            "is used: leave the others out of a copy of it"
        )
    if len(found) > 1:
        raise ConfigError(f"{path}: has several links between {link.to} and {behind[0]}")
    unused = sorted(memories.keys() - {link.to, *behind})
    if unused:
        third = f" and {behind[0]}, which is linked with that" if behind else ""
        further = "" if behind else f", or add {_link_example(link.to, unused[0])}"
        raise ConfigError(
            f"{path}: {' and '.join(unused)} would not be used: a step takes {link.to}{third}; "
            f"leave the rest out of a copy of it{further}"
        )
    if not found:
        return None
    name = behind[0]
    room, own = memories[name].memory, memories[link.to].memory
    return HostLink(room=room, device=link.to, memory=own, to=name, **_figures(found[0]))


def parse_host_link(text: str, what: str) -> HostLink:
    """The link that `HostLink.text` says; raises ArtifactError, naming `what`, where it is none."""
    try:
        found = json.loads(text)
        figures: dict[str, Any] = {
            name: math.inf if figure is None else figure for name, figure in found.items()
        }
        link = HostLink(**figures)
        times = [link.latency, link.overhead, link.overhead_per_byte]
        sizes = [link.bandwidth, link.room, link.memory, *times]
        good = all(_is_size(size) for size in sizes) and all(map(math.isfinite, times))
        good = good and isinstance(link.source, str)
        named = all(isinstance(name, str) and name for name in (link.device, link.to))
    except (ValueError, AttributeError, TypeError, RecursionError):
        good = named = False
    if not (good and named and isinstance(link.shared, bool)):
        raise ArtifactError(f"{what}: what it says of a link is none")
    return link


def _is_size(figure: Any) -> bool:
    plain = isinstance(figure, int | float) and not isinstance(figure, bool)
    return plain and figure >= 0
