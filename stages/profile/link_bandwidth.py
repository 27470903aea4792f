"""Measures the link of a device to its offload target: the disk of the CPU, the host of a GPU."""

from __future__ import annotations

import os
import shutil
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from tightfit.schemas.link import HOST
from tightfit.schemas.machine import MACHINE_ARTIFACT
from tightfit.schemas.measured_link import SECOND_TIER_DISK, MeasuredLink
from tightfit.schemas.optimizer_plan import LinkSpeed
from tightfit.stages.profile.link_overhead import SHORT_TRANSFER_BYTES, measure_transfer_overhead
from tightfit.stages.runtime.offload.disk_target import disk_folder_of
from tightfit.stages.runtime.offload.host_target import create_offload_target
from tightfit.stages.runtime.offload.second_tier import SECOND_TIER_OPTION, SecondTier
from tightfit.stages.runtime.offload.staging import StateTarget
from tightfit.stages.runtime.offload.target import MemoryRegion
from tightfit.stages.torch_utils.devices import parse_device, synchronize_device
from tightfit.stages.torch_utils.timing import HostClock

TRANSFER_BYTES = 4 << 20
"""Bytes of one transfer."""
SHARED_LINK_FACTOR = 1.5
"""Both ways share the bandwidth where both at once take longer than this times one."""
SAMPLE_BYTES = 16 << 20
"""Bytes each way by which a link is known again."""
_ROUNDS = 5


def measure_link_speed(
    device: torch.device | str,
    folder: str | None = None,
    size: int = 256 << 20,
    clock: HostClock | None = None,
) -> LinkSpeed:
    """The speed of the link, over `size` bytes in transfers of 4 MiB: the median of five rounds,
    without what other work took of them, which a `clock` tells.

    What is read was written just before, so that a disk is as fast as the operating system makes
    files that it has memory for; a `size` beyond the memory measures the disk itself.
    """
    place = parse_device(device)
    count = max(size // TRANSFER_BYTES, 1)
    memory = create_offload_target(place, 2 * count * TRANSFER_BYTES, folder)
    one, other = (torch.zeros(TRANSFER_BYTES, dtype=torch.uint8, device=place) for _ in range(2))
    return _measure_speed(
        place, memory, count, one, other, one[:SHORT_TRANSFER_BYTES], clock or HostClock()
    )


def sample_link(device: torch.device | str, folder: str | os.PathLike[str] | None = None) -> float:
    """Bytes a second of a few transfers: by it a link is known again."""
    return min(measure_link_speed(device, _resolve_folder(device, folder), SAMPLE_BYTES).both)


def sample_second_tier_link(
    device: torch.device | str,
    folder: str | os.PathLike[str] | None,
    far_folder: str | os.PathLike[str],
) -> float:
    """As `sample`, of the link to a second offload tier."""
    own, far = _resolve_folder(device, folder), str(Path(far_folder).resolve())
    return min(_measure_second_tier_speed(device, own, far, SAMPLE_BYTES, HostClock()).both)


def has_disk_space(place: str) -> bool:
    """Whether the disk of a folder has room for the files of a sample."""
    return shutil.disk_usage(place).free >= 4 * SAMPLE_BYTES


def _resolve_folder(
    device: torch.device | str, folder: str | os.PathLike[str] | None
) -> str | None:
    """The folder of a disk that is named, None for the default one and for the host's memory."""
    named = folder and parse_device(device).type == "cpu"
    return str(Path(disk_folder_of(folder)).resolve()) if named else None


def _measure_second_tier_speed(
    device: torch.device | str, folder: str | None, far_folder: str, size: int, clock: HostClock
) -> LinkSpeed:
    """The speed of the link from the offload target of a device to the disk of `far_folder` behind
    it, as `measure_link_speed`."""
    place = parse_device(device)
    count = max(size // TRANSFER_BYTES, 1)
    memory = create_offload_target(place, 2 * TRANSFER_BYTES, folder)
    one, other = MemoryRegion(0, TRANSFER_BYTES), MemoryRegion(TRANSFER_BYTES, TRANSFER_BYTES)
    try:
        behind = SecondTier(memory, 2 * count * TRANSFER_BYTES, far_folder)
        return _measure_speed(
            place, behind, count, one, other, MemoryRegion(0, SHORT_TRANSFER_BYTES), clock
        )
    finally:
        memory.close()


def _measure_speed(
    place: torch.device,
    memory: StateTarget,
    count: int,
    one: Any,
    other: Any,
    least: Any,
    clock: HostClock,
) -> LinkSpeed:
    """The speed at which two parts of a memory leave for another one, which is closed then, and
    come from there, so many times each; `least` is a short one."""

    def leave() -> list[Any]:
        return [memory.write(one, number * TRANSFER_BYTES) for number in range(count)]

    def come() -> list[Any]:
        return [memory.read(other, (count + number) * TRANSFER_BYTES) for number in range(count)]

    def short() -> list[Any]:
        return [memory.write(least, 0)]

    def seconds(*issue: Callable[[], list[Any]]) -> float:
        def run() -> None:
            tickets = [ticket for each in issue for ticket in each()]
            for ticket in tickets:
                memory.wait(ticket)
            synchronize_device(place)

        synchronize_device(place)
        return clock(run)

    try:
        for number in range(2 * count):
            memory.wait(memory.write(one, number * TRANSFER_BYTES))
        latency = statistics.median(seconds(short) for _ in range(20))
        rounds = [(seconds(leave), seconds(come), seconds(leave, come)) for _ in range(_ROUNDS)]
    finally:
        memory.close()
    to, back, both = (statistics.median(times) for times in zip(*rounds, strict=True))
    return compute_link_speed(count * TRANSFER_BYTES, to, back, both, latency)


def compute_link_speed(
    moved: int, to: float, back: float, both: float, latency: float
) -> LinkSpeed:
    """The speed at which so many bytes leave, come back, and do both at once, in these seconds:
    none is faster beside the other way than alone, whatever the clock says."""
    # Beside each other the slower way goes on alone once the other one is through.
    longer = max(both / max(to, back), 1.0)
    each = (moved / (to * longer), moved / (back * longer))
    return LinkSpeed(moved / to, moved / back, each, latency)


def measure_offload_link(
    device: torch.device | str,
    folder: str | os.PathLike[str] | None = None,
    size: int = 256 << 20,
    exact: bool = False,
) -> MeasuredLink:
    """The link of a device to its offload target with the room there: on the CPU that of the disk
    of a folder, else that of the host. See `measure_link_speed`.

    Over fewer bytes than `size` where less than twice that is free on the disk, which then has half
    of its room taken, unless the size is to be `exact`. Raises RuntimeError, in one sentence, where
    there is no room to measure, and as `slow_memory` does.
    """
    clock, when = HostClock(), _utc_time()
    if parse_device(device).type != "cpu":
        speed = _add_overhead(measure_link_speed(device, None, size, clock), device, None)
        found = MeasuredLink(speed, HOST, _host_memory_bytes(), when=when)
        return replace(found, lost=clock.share, sample=sample_link(device))
    place = str(Path(disk_folder_of(folder)).resolve())
    if Path(place).is_dir():
        size = _fit_to_disk_space(place, size, exact)
    named = place if folder else None
    speed = _add_overhead(measure_link_speed(device, named, size, clock), device, named)
    found = MeasuredLink(speed, "disk", max(shutil.disk_usage(place).free, 1), place, when=when)
    some = sample_link(device, folder) if has_disk_space(place) else min(speed.both)
    return replace(found, lost=clock.share, sample=some)


def _add_overhead(speed: LinkSpeed, device: torch.device | str, folder: str | None) -> LinkSpeed:
    """The speed with what a transfer takes of what computes."""
    own = measure_transfer_overhead(
        parse_device(device), folder, lambda size: speed.seconds(size, True)
    )
    return replace(speed, overhead=own.transfer, overhead_per_byte=own.byte)


def _fit_to_disk_space(place: str, size: int, exact: bool, named: str = "disk") -> int:
    """The bytes to move each way that a disk has room for, which takes twice as many."""
    free, needed = (
        shutil.disk_usage(place).free,
        2 * max(size // TRANSFER_BYTES, 1) * TRANSFER_BYTES,
    )
    if needed <= free:
        return size
    least = needed if exact else 2 * TRANSFER_BYTES
    if free < least:
        raise RuntimeError(
            f"the disk of {place} has {free} bytes free, and to measure its link takes {least}: "
            f"free some, or name another folder as {named}"
        )
    return max(free // (4 * TRANSFER_BYTES), 1) * TRANSFER_BYTES


def measure_second_tier_link(
    device: torch.device | str,
    folder: str | os.PathLike[str] | None,
    far_folder: str | os.PathLike[str],
    size: int = 256 << 20,
    exact: bool = False,
) -> MeasuredLink:
    """The link from the offload target of a device to the disk of a folder, with the room there; as
    `measured`."""
    on_cpu = parse_device(device).type == "cpu"
    own = str(Path(disk_folder_of(folder)).resolve()) if on_cpu else ""
    place = str(Path(far_folder).resolve())
    if Path(place).is_dir():
        size = _fit_to_disk_space(place, size, exact, SECOND_TIER_OPTION)
    clock, when = HostClock(), _utc_time()
    speed = _measure_second_tier_speed(device, own if folder else None, place, size, clock)
    room = max(shutil.disk_usage(place).free, 1)
    found = MeasuredLink(speed, SECOND_TIER_DISK, room, place, own or HOST, when)
    some = (
        sample_second_tier_link(device, folder, far_folder)
        if has_disk_space(place)
        else min(speed.both)
    )
    return replace(found, lost=clock.share, sample=some)


def describe_machine(
    device: torch.device | str, link: MeasuredLink, far: MeasuredLink | None = None
) -> dict[str, Any]:
    """A description (`tightfit.machine/1`) of this machine, with one device, its link and that from
    its offload target to a third one, where there is one."""
    place = parse_device(device)
    name, own = "cpu", _host_memory_bytes()
    if place.type == "cuda":
        name, own = str(place), torch.cuda.get_device_properties(place).total_memory
    found = [(name, link), *([] if far is None else [(link.memory, far)])]
    sources = {"links": link.said}
    if far is not None:
        sources[far.memory] = far.said
    return {
        "artifact": MACHINE_ARTIFACT,
        "name": "here",
        "devices": [{"name": name, "memory": own}],
        "memories": [{"name": each.memory, "memory": each.room} for _, each in found],
        "links": [_describe_link(near, each) for near, each in found],
        "sources": sources,
    }


def _describe_link(near: str, link: MeasuredLink) -> dict[str, Any]:
    """A link from a place in the description of a machine."""
    shared = link.speed.to > SHARED_LINK_FACTOR * link.speed.both[0]
    return {
        "between": [near, link.memory],
        "bandwidth": round(_bandwidth(link.speed, shared)),
        "latency": link.speed.latency,
        "overhead": link.speed.overhead,
        "overhead_per_byte": link.speed.overhead_per_byte,
        "shared": shared,
    }


def _utc_time() -> str:
    """The time of the day in Universal Time."""
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())


def _host_memory_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _bandwidth(speed: LinkSpeed, shared: bool) -> float:
    """One figure for both ways, which neither beats: of each way, or of both as they take turns."""
    both = min(speed.both)
    return min(speed.to, speed.back, 2 * both) if shared else both
