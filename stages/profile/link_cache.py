"""The link of a device to its offload target, kept with the device's profile: measured once."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

from tightfit.schemas.link import HOST
from tightfit.schemas.measured_link import (
    SECOND_TIER_DISK,
    MeasuredLink,
    read_measured_link,
    write_measured_link,
)
from tightfit.schemas.store import read_json, write_json
from tightfit.stages.profile.cost_library import device_digest, open_cost_library
from tightfit.stages.profile.link_bandwidth import (
    describe_machine,
    has_disk_space,
    measure_offload_link,
    measure_second_tier_link,
    sample_link,
    sample_second_tier_link,
)
from tightfit.stages.runtime.offload.disk_target import disk_folder_of
from tightfit.stages.torch_utils.devices import describe_device, parse_device
from tightfit.stages.torch_utils.timing import is_machine_idle
from tightfit.util.errors import ArtifactError, ConfigError

CACHED_LINK_BYTES = 64 << 20
"""Bytes that are moved each way to measure a link that is kept."""
SPEED_CHANGE_FACTOR = 2.0
"""A link is another one where a few transfers are faster or slower by this factor than they were
when it was measured."""


def cached_link(
    store: Path | str,
    device: str,
    folder: str | os.PathLike[str] | None = None,
    again: bool = False,
    size: int | None = None,
) -> MeasuredLink:
    """The link of a device to its offload target, on the CPU to the disk of a folder: what the
    store has of it or, where it has nothing, `again` says so, or a few transfers on a machine
    without other work contradict it, what is measured over `size` bytes (unless given
    `CACHED_LINK_BYTES`, or what the disk has room for).

    Raises ConfigError where the disk cannot be written or is too full, ArtifactError where what the
    store has is damaged, or nothing can be kept there.
    """
    ends = _link_ends(device, folder)

    def measure() -> MeasuredLink:
        return measure_offload_link(
            device, folder, size or CACHED_LINK_BYTES, exact=size is not None
        )

    return _read_or_measure(
        store, device, ends, "disk", measure, lambda: sample_link(device, folder), again
    )


def cached_second_tier_link(
    store: Path | str,
    device: str,
    folder: str | os.PathLike[str] | None,
    far_folder: str | os.PathLike[str],
    again: bool = False,
    size: int | None = None,
) -> MeasuredLink:
    """The link from the offload target of a device to the disk of `far_folder` behind it, kept as
    that of `cached_link`, by both ends; raises as that does."""
    place = str(Path(far_folder).resolve())
    ends = (SECOND_TIER_DISK, place, _disk_folder(device, folder) or HOST)

    def measure() -> MeasuredLink:
        return measure_second_tier_link(
            device, folder, far_folder, size or CACHED_LINK_BYTES, size is not None
        )

    def known_again() -> float:
        return sample_second_tier_link(device, folder, far_folder)

    return _read_or_measure(store, device, ends, "second_disk", measure, known_again, again)


LinkEnds = tuple[str, str, str]
"""The memory that a link leads to, its folder, and what it is behind; "" for none."""


def _read_or_measure(
    store: Path | str,
    device: str,
    ends: LinkEnds,
    key: str,
    measure: Callable[[], MeasuredLink],
    known_again: Callable[[], float],
    again: bool,
) -> MeasuredLink:
    """What the store has of a link, or what is measured; `key` is where its folder is named."""
    path = _cache_path(store, device, ends)
    with open_cost_library(store, describe_device(device)):
        if path.exists() and not again:
            try:
                known = _read_cached(path, ends)
            except ArtifactError as error:
                raise ArtifactError(f"{error}; remove it, and the link is measured anew") from error
            if not os.access(path.parent, os.W_OK) or _is_unchanged(known, known_again, key):
                return known
        try:
            found = measure()
        except (RuntimeError, OSError) as error:
            raise ConfigError(f"{key}: {error}") from error
        write_measured_link(path, found)
        return found


def _is_unchanged(known: MeasuredLink, known_again: Callable[[], float], key: str) -> bool:
    """Whether a link is as it was when it was measured, as far as can be told: beside other work it
    cannot, or where a disk has no room for the files of a `sample`."""
    full = known.folder and Path(known.folder).is_dir() and not has_disk_space(known.folder)
    if full or not is_machine_idle():
        return True
    try:
        now = known_again()
    except (RuntimeError, OSError) as error:
        raise ConfigError(f"{key}: {error}") from error
    return known.sample / SPEED_CHANGE_FACTOR <= now <= known.sample * SPEED_CHANGE_FACTOR


def cached_machine(
    store: Path | str, device: str, folder: str | os.PathLike[str] | None = None
) -> Path:
    """The path of the description, in the store, of this machine with its link; raises as
    `cached_link` does."""
    link = cached_link(store, device, folder)
    path = _cache_path(store, device, _link_ends(device, folder)).with_suffix(".machine.json")
    write_machine(path, device, link)
    return path


def write_machine(
    path: Path, device: str, link: MeasuredLink, far: MeasuredLink | None = None
) -> None:
    """Writes the description of this machine with a link, and one to a second offload tier, unless
    the file has it: a store may be one that is only read."""
    made = describe_machine(device, link, far)
    if not path.exists() or read_json(path) != made:
        write_json(path, made)


def _read_cached(path: Path, ends: LinkEnds) -> MeasuredLink:
    """What a store has of a link; raises ArtifactError where it is one to an offload target."""
    found = read_measured_link(path)
    if (found.memory, found.folder, found.behind) != ends:
        memory, folder, _ = ends
        one, other = f"{found.memory} {found.folder}".strip(), f"{memory} {folder}".strip()
        raise ArtifactError(f"{path}: is the link to the {one}, not to the {other}")
    return found


def _link_ends(device: str, folder: str | os.PathLike[str] | None) -> LinkEnds:
    """Where the link of a device leads."""
    place = _disk_folder(device, folder)
    return "disk" if place else HOST, place, ""


def _disk_folder(device: str, folder: str | os.PathLike[str] | None) -> str:
    """The folder of the disk that is a device's offload target, "" where that is the host's."""
    on_cpu = parse_device(device).type == "cpu"
    return str(Path(disk_folder_of(folder)).resolve()) if on_cpu else ""


def _cache_path(store: Path | str, device: str, ends: LinkEnds) -> Path:
    _, place, behind = ends
    written = f"{place}\0{behind}" if behind else place
    own = hashlib.sha256(written.encode()).hexdigest()
    name = f"{device_digest(describe_device(device))}.{own}"
    return Path(store) / "profile" / f"{name[:49]}.link-3.json"
