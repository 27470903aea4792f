"""The link of a device to its slow memory, kept with the device's profile: measured once."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from schemas.errors import ArtifactError, ConfigError
from schemas.measured_link import MeasuredLink, read_link, write_link
from schemas.store import read_json, write_json
from stages.device.devices import device_named
from stages.device.disk import folder_of
from stages.profile.device import describe_device
from stages.profile.library import device_digest, open_library
from stages.profile.links import machine_of, measured

KEPT_SIZE = 64 << 20
"""Bytes that are moved each way to measure a link that is kept."""


def kept_link(
    store: Path | str,
    device: str,
    folder: str | os.PathLike[str] | None = None,
    again: bool = False,
    size: int | None = None,
) -> MeasuredLink:
    """The link of a device to its slow memory, on the CPU to the disk of a folder: what the store
    has of it or, where it has nothing or `again` says so, what is measured over `size` bytes
    (unless given `KEPT_SIZE`, or what the disk has room for).

    Raises ConfigError where the disk cannot be written or is too full, ArtifactError where what the
    store has is damaged, or nothing can be kept there.
    """
    path = _path(store, device, folder)
    with open_library(store, describe_device(device)):
        if path.exists() and not again:
            try:
                return _own(path, device, folder)
            except ArtifactError as error:
                raise ArtifactError(f"{error}; remove it, and the link is measured anew") from error
        try:
            found = measured(device, folder, size or KEPT_SIZE, exact=size is not None)
        except (RuntimeError, OSError) as error:
            raise ConfigError(f"disk: {error}") from error
        write_link(path, found)
        return found


def kept_machine(
    store: Path | str, device: str, folder: str | os.PathLike[str] | None = None
) -> Path:
    """The path of the description, in the store, of this machine with its link; raises as
    `kept_link` does."""
    link = kept_link(store, device, folder)
    path = _path(store, device, folder).with_suffix(".machine.json")
    write_machine(path, device, link)
    return path


def write_machine(path: Path, device: str, link: MeasuredLink) -> None:
    """Writes the description of this machine with a link, unless the file has it: a store may be
    one that is only read."""
    made = machine_of(device, link)
    if not path.exists() or read_json(path) != made:
        write_json(path, made)


def _own(path: Path, device: str, folder: str | os.PathLike[str] | None) -> MeasuredLink:
    """What a store has of a link; raises ArtifactError where it is one to another memory."""
    found, place = read_link(path), _place(device, folder)
    memory = "disk" if place else "host"
    if (found.memory, found.folder) != (memory, place):
        one, other = f"{found.memory} {found.folder}".strip(), f"{memory} {place}".strip()
        raise ArtifactError(f"{path}: is the link to the {one}, not to the {other}")
    return found


def _place(device: str, folder: str | os.PathLike[str] | None) -> str:
    """The folder of the disk that is a device's slow memory, "" where that is the host's."""
    on_cpu = device_named(device).type == "cpu"
    return str(Path(folder_of(folder)).resolve()) if on_cpu else ""


def _path(store: Path | str, device: str, folder: str | os.PathLike[str] | None) -> Path:
    place = _place(device, folder)
    name = f"{device_digest(describe_device(device))}.{hashlib.sha256(place.encode()).hexdigest()}"
    return Path(store) / "profile" / f"{name[:49]}.link-1.json"
