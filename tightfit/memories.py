"""What `plan` was given of other memories: their folders, and how much of one it may take."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from tightfit.schemas.budget import parse_budget
from tightfit.schemas.errors import ConfigError
from tightfit.settings import check_folder

Folder = Path | str | None


@dataclass(frozen=True)
class Memories:
    """Where the other memories are: the folder of the `disk`, on the CPU, of which a plan may take
    `room` bytes, as of the host's memory on a GPU, and that of a disk behind it, `far`; None where
    it is not said."""

    disk: Folder = None
    far: Folder = None
    room: int | None = None

    @property
    def folders(self) -> tuple[str | None, str | None]:
        """Both folders."""
        own, far = (None if each is None else str(each) for each in (self.disk, self.far))
        return own, far


def memories_of(
    disk: Folder,
    far_disk: object,
    room: object,
    parameters: str,
    accumulating: bool,
    device: str,
) -> Memories:
    """The other memories of a plan for a kind of device; raises ConfigError where they are none, or
    nothing would be there."""
    if far_disk is None and room is None:
        return Memories(disk)
    for name, value in (("far_disk", far_disk), ("room", room)):
        if value is not None and parameters != "away":
            raise ConfigError(
                f'plan: {name} is for plans whose parameters live in another memory: parameters="'
                'away"'
            )
    if far_disk is not None:
        check_folder("plan", far_disk, "far_disk")
        if accumulating:
            raise ConfigError(
                "plan: far_disk: parameters with states there are updated where they live, and "
                "with accumulating or keep_gradients all are updated on the device: leave one of "
                "the two out"
            )
        if device != "cpu" and room is None:
            raise ConfigError(
                "plan: far_disk needs room, the bytes of the host's memory that may be taken"
            )
    return Memories(disk, None if far_disk is None else str(far_disk), _bytes(room))


def _bytes(room: object) -> int | None:
    if room is None:
        return None
    size = parse_budget(room, "plan: room").size  # type: ignore[arg-type]
    if size is None:
        raise ConfigError(f"plan: room is {room!r}, expected bytes or a size such as '20GB'")
    return size


def free_bytes(folder: Path | str, key: str) -> int:
    """The free bytes of the disk of a folder; raises ConfigError, with where it was named."""
    try:
        return shutil.disk_usage(folder).free
    except OSError as error:
        why = error.strerror or error
        raise ConfigError(f"plan: {key}: {folder} is no folder of a disk ({why})") from error
