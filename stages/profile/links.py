"""Measures the link of a device to its slow memory: the disk of the CPU, the host of a GPU."""

from __future__ import annotations

import os
import shutil
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from schemas.machine import ARTIFACT
from schemas.measured_link import MeasuredLink
from schemas.updates import LinkSpeed
from stages.device.devices import device_named, wait_for
from stages.device.disk import folder_of
from stages.device.memories import slow_memory

PIECE = 4 << 20
"""Bytes of one transfer."""
SHARED = 1.5
"""Both ways share the bandwidth where both at once take longer than this times one."""
_ROUNDS = 5
_SHORT = 4096


def measure_link(
    device: torch.device | str, folder: str | None = None, size: int = 256 << 20
) -> LinkSpeed:
    """The speed of the link, over `size` bytes in transfers of 4 MiB: the median of five rounds.

    What is read was written just before, so that a disk is as fast as the operating system makes
    files that it has memory for; a `size` beyond the memory measures the disk itself.
    """
    place = device_named(device)
    count = max(size // PIECE, 1)
    memory = slow_memory(place, 2 * count * PIECE, folder)
    one, other = (torch.zeros(PIECE, dtype=torch.uint8, device=place) for _ in range(2))

    def leave() -> list[Any]:
        return [memory.write(one, number * PIECE) for number in range(count)]

    def come() -> list[Any]:
        return [memory.read(other, (count + number) * PIECE) for number in range(count)]

    def short() -> list[Any]:
        return [memory.write(one[:_SHORT], 0)]

    def seconds(*issue: Callable[[], list[Any]]) -> float:
        wait_for(place)
        begin = time.perf_counter()
        tickets = [ticket for each in issue for ticket in each()]
        for ticket in tickets:
            memory.wait(ticket)
        wait_for(place)
        return time.perf_counter() - begin

    try:
        for number in range(2 * count):
            memory.wait(memory.write(one, number * PIECE))
        latency = statistics.median(seconds(short) for _ in range(20))
        rounds = [(seconds(leave), seconds(come), seconds(leave, come)) for _ in range(_ROUNDS)]
    finally:
        memory.close()
    to, back, both = (statistics.median(times) for times in zip(*rounds, strict=True))
    return speed_of(count * PIECE, to, back, both, latency)


def speed_of(moved: int, to: float, back: float, both: float, latency: float) -> LinkSpeed:
    """The speed at which so many bytes leave, come back, and do both at once, in these seconds:
    none is faster beside the other way than alone, whatever the clock says."""
    # Beside each other the slower way goes on alone once the other one is through.
    longer = max(both / max(to, back), 1.0)
    each = (moved / (to * longer), moved / (back * longer))
    return LinkSpeed(moved / to, moved / back, each, latency)


def measured(
    device: torch.device | str,
    folder: str | os.PathLike[str] | None = None,
    size: int = 256 << 20,
    exact: bool = False,
) -> MeasuredLink:
    """The link of a device to its slow memory with the room there: on the CPU that of the disk of a
    folder, else that of the host. See `measure_link`.

    Over fewer bytes than `size` where less than twice that is free on the disk, which then has half
    of its room taken, unless the size is to be `exact`. Raises RuntimeError, in one sentence, where
    there is no room to measure, and as `slow_memory` does.
    """
    if device_named(device).type != "cpu":
        return MeasuredLink(measure_link(device, None, size), "host", _host_bytes())
    place = str(Path(folder_of(folder)).resolve())
    if Path(place).is_dir():
        size = _within(place, size, exact)
    speed = measure_link(device, place if folder else None, size)
    return MeasuredLink(speed, "disk", max(shutil.disk_usage(place).free, 1), place)


def _within(place: str, size: int, exact: bool) -> int:
    """The bytes to move each way that a disk has room for, which takes twice as many."""
    free, needed = shutil.disk_usage(place).free, 2 * max(size // PIECE, 1) * PIECE
    if needed <= free:
        return size
    least = needed if exact else 2 * PIECE
    if free < least:
        raise RuntimeError(
            f"the disk of {place} has {free} bytes free, and to measure its link takes {least}: "
            f"free some, or name another folder as disk"
        )
    return max(free // (4 * PIECE), 1) * PIECE


def machine_of(device: torch.device | str, link: MeasuredLink) -> dict[str, Any]:
    """A description (`tightfit.machine/1`) of this machine, with one device and its link."""
    place, speed = device_named(device), link.speed
    name, own = "cpu", _host_bytes()
    if place.type == "cuda":
        name, own = str(place), torch.cuda.get_device_properties(place).total_memory
    shared = speed.to > SHARED * speed.both[0]
    alone = f"{speed.to:.3g} bytes a second leave and {speed.back:.3g} return alone"
    beside = f"{speed.both[0]:.3g} and {speed.both[1]:.3g} both at once"
    return {
        "artifact": ARTIFACT,
        "name": "here",
        "devices": [{"name": name, "memory": own}],
        "memories": [{"name": link.memory, "memory": link.room}],
        "links": [
            {
                "between": [name, link.memory],
                "bandwidth": round(_bandwidth(speed, shared)),
                "latency": speed.latency,
                "shared": shared,
            }
        ],
        "sources": {"links": f"measured here: {alone}, {beside}"},
    }


def _host_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _bandwidth(speed: LinkSpeed, shared: bool) -> float:
    """One figure for both ways, which neither beats: of each way, or of both as they take turns."""
    both = min(speed.both)
    return min(speed.to, speed.back, 2 * both) if shared else both
