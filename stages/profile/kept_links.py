"""The link of a device to its slow memory, kept with the device's profile: measured once."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

from tightfit.schemas.errors import ArtifactError, ConfigError
from tightfit.schemas.link import HOST
from tightfit.schemas.measured_link import FAR, MeasuredLink, read_link, write_link
from tightfit.schemas.store import read_json, write_json
from tightfit.stages.device.clocks import is_quiet
from tightfit.stages.device.devices import device_named
from tightfit.stages.device.disk import folder_of
from tightfit.stages.device.identity import describe_device
from tightfit.stages.profile.library import device_digest, open_library
from tightfit.stages.profile.links import (
    has_room,
    machine_of,
    measured,
    measured_far,
    sample,
    sample_far,
)

KEPT_SIZE = 64 << 20
"""Bytes that are moved each way to measure a link that is kept."""
OTHER = 2.0
"""A link is another one where a few transfers are faster or slower by this factor than they were
when it was measured."""


def kept_link(
    store: Path | str,
    device: str,
    folder: str | os.PathLike[str] | None = None,
    again: bool = False,
    size: int | None = None,
) -> MeasuredLink:
    """The link of a device to its slow memory, on the CPU to the disk of a folder: what the store
    has of it or, where it has nothing, `again` says so, or a few transfers on a machine without
    other work contradict it, what is measured over `size` bytes (unless given `KEPT_SIZE`, or what
    the disk has room for).

    Raises ConfigError where the disk cannot be written or is too full, ArtifactError where what the
    store has is damaged, or nothing can be kept there.
    """
    ends = _ends(device, folder)

    def measure() -> MeasuredLink:
        return measured(device, folder, size or KEPT_SIZE, exact=size is not None)

    return _kept(store, device, ends, "disk", measure, lambda: sample(device, folder), again)


def kept_far_link(
    store: Path | str,
    device: str,
    folder: str | os.PathLike[str] | None,
    far_folder: str | os.PathLike[str],
    again: bool = False,
    size: int | None = None,
) -> MeasuredLink:
    """The link from the slow memory of a device to the disk of `far_folder` behind it, kept as that
    of `kept_link`, by both ends; raises as that does."""
    place = str(Path(far_folder).resolve())
    ends = (FAR, place, _place(device, folder) or HOST)

    def measure() -> MeasuredLink:
        return measured_far(device, folder, far_folder, size or KEPT_SIZE, size is not None)

    def known_again() -> float:
        return sample_far(device, folder, far_folder)

    return _kept(store, device, ends, "far_disk", measure, known_again, again)


Ends = tuple[str, str, str]
"""The memory that a link leads to, its folder, and what it is behind; "" for none."""


def _kept(
    store: Path | str,
    device: str,
    ends: Ends,
    key: str,
    measure: Callable[[], MeasuredLink],
    known_again: Callable[[], float],
    again: bool,
) -> MeasuredLink:
    """What the store has of a link, or what is measured; `key` is where its folder is named."""
    path = _path(store, device, ends)
    with open_library(store, describe_device(device)):
        if path.exists() and not again:
            try:
                known = _own(path, ends)
            except ArtifactError as error:
                raise ArtifactError(f"{error}; remove it, and the link is measured anew") from error
            if not os.access(path.parent, os.W_OK) or _is_still(known, known_again, key):
                return known
        try:
            found = measure()
        except (RuntimeError, OSError) as error:
            raise ConfigError(f"{key}: {error}") from error
        write_link(path, found)
        return found


def _is_still(known: MeasuredLink, known_again: Callable[[], float], key: str) -> bool:
    """Whether a link is as it was when it was measured, as far as can be told: beside other work it
    cannot, or where a disk has no room for the files of a `sample`."""
    full = known.folder and Path(known.folder).is_dir() and not has_room(known.folder)
    if full or not is_quiet():
        return True
    try:
        now = known_again()
    except (RuntimeError, OSError) as error:
        raise ConfigError(f"{key}: {error}") from error
    return known.sample / OTHER <= now <= known.sample * OTHER


def kept_machine(
    store: Path | str, device: str, folder: str | os.PathLike[str] | None = None
) -> Path:
    """The path of the description, in the store, of this machine with its link; raises as
    `kept_link` does."""
    link = kept_link(store, device, folder)
    path = _path(store, device, _ends(device, folder)).with_suffix(".machine.json")
    write_machine(path, device, link)
    return path


def write_machine(
    path: Path, device: str, link: MeasuredLink, far: MeasuredLink | None = None
) -> None:
    """Writes the description of this machine with a link, and one to a third memory, unless the
    file has it: a store may be one that is only read."""
    made = machine_of(device, link, far)
    if not path.exists() or read_json(path) != made:
        write_json(path, made)


def _own(path: Path, ends: Ends) -> MeasuredLink:
    """What a store has of a link; raises ArtifactError where it is one to another memory."""
    found = read_link(path)
    if (found.memory, found.folder, found.behind) != ends:
        memory, folder, _ = ends
        one, other = f"{found.memory} {found.folder}".strip(), f"{memory} {folder}".strip()
        raise ArtifactError(f"{path}: is the link to the {one}, not to the {other}")
    return found


def _ends(device: str, folder: str | os.PathLike[str] | None) -> Ends:
    """Where the link of a device leads."""
    place = _place(device, folder)
    return "disk" if place else HOST, place, ""


def _place(device: str, folder: str | os.PathLike[str] | None) -> str:
    """The folder of the disk that is a device's slow memory, "" where that is the host's."""
    on_cpu = device_named(device).type == "cpu"
    return str(Path(folder_of(folder)).resolve()) if on_cpu else ""


def _path(store: Path | str, device: str, ends: Ends) -> Path:
    _, place, behind = ends
    written = f"{place}\0{behind}" if behind else place
    own = hashlib.sha256(written.encode()).hexdigest()
    name = f"{device_digest(describe_device(device))}.{own}"
    return Path(store) / "profile" / f"{name[:49]}.link-3.json"
