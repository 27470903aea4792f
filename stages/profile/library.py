"""The library of costs: one file a device, for all models, written by one process at a time."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import sys
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path

from tightfit.schemas.costs import Cost, Costs, Device, read_costs, write_costs
from tightfit.schemas.errors import ArtifactError


class Library:
    """The costs of one device that are known so far; `open_library` gives one."""

    def __init__(self, path: Path, device: Device) -> None:
        self.path = path
        self.costs = read_costs(path) if path.exists() else Costs([], device)
        if self.costs.device != device:
            raise ArtifactError(f"{path}: holds the costs of another device, {self.costs.device}")

    def find(self, key: str) -> Cost | None:
        """The cost with this key, None where it has not been measured."""
        return self.costs.rows.get(key)

    def add(self, rows: Iterable[Cost]) -> None:
        """Adds or replaces rows, in the file too."""
        fresh = {row.key: row for row in rows}
        if fresh:
            self.costs.rows.update(fresh)
            write_costs(self.path, self.costs)


@contextmanager
def open_library(store: Path | str, device: Device) -> Iterator[Library]:
    """The library of a device in a store, reserved for this process until the context ends.

    Measuring needs the machine to itself, so all devices of a store have one lock; whoever waits
    for it says so on standard error. A store that is read-only can be read: nobody writes to it.
    Raises ArtifactError when the library's file is damaged, or neither there nor to be made.
    """
    folder = Path(store) / "profile"
    path = folder / f"{device_digest(device)}.arrow"
    with ExitStack() as locked:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            lock = locked.enter_context(_regular(folder / "lock").open("a"))
        except OSError as error:
            if not path.exists():
                reason = error.strerror or error
                raise ArtifactError(f"{folder}: cannot be written ({reason})") from error
        else:
            _wait_for(lock.fileno(), folder)
        yield Library(path, device)


def _regular(path: Path) -> Path:
    """The path of a file, or of none; raises OSError for anything else, which may never open."""
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, f"{path.name} is no file")
    return path


def device_digest(device: Device) -> str:
    """The first 32 hex digits of the SHA-256 of what costs depend on beyond the op."""
    text = json.dumps(asdict(device), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _wait_for(handle: int, folder: Path) -> None:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        print(f"waiting for another profile that uses {folder} to end", file=sys.stderr)
        fcntl.flock(handle, fcntl.LOCK_EX)
