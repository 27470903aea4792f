"""`tightfit.link/1`: the link from a device to its slow memory, as it was measured."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from schemas.errors import ArtifactError
from schemas.store import read_json, write_json
from schemas.updates import LinkSpeed

ARTIFACT = "tightfit.link/1"
FAR = "far-disk"
"""The name of a third memory, a disk behind the slow one."""
_MOST_BYTES = 1 << 16
_KEYS = {"artifact", "to", "back", "both", "latency", "memory", "room", "folder"}
_SPEEDS = (1.0, 1e18)
_LATENCIES = (0.0, 1.0)
_SIZES = (1, 10**18)


@dataclass(frozen=True)
class MeasuredLink:
    """The `speed` of a link to the slow `memory` ("disk" or "host"), which had `room` for so many
    bytes then; `folder` is that of a disk, "" for the host's memory. A third memory (`FAR`) is
    `behind` another one: the folder of a disk, or "host"."""

    speed: LinkSpeed
    memory: str
    room: int
    folder: str = ""
    behind: str = ""


def write_link(path: Path | str, link: MeasuredLink) -> None:
    """Writes a link as JSON; raises ArtifactError where that cannot be done."""
    speed = link.speed
    figures = {"to": speed.to, "back": speed.back, "both": list(speed.both)}
    more = {"latency": speed.latency, "memory": link.memory, "room": link.room}
    more |= {"folder": link.folder, **({"behind": link.behind} if link.behind else {})}
    write_json(path, {"artifact": ARTIFACT, **figures, **more})


def read_link(path: Path | str) -> MeasuredLink:
    """Reads a link; raises ArtifactError where the file holds none."""
    found = read_json(path, _MOST_BYTES)
    if found.get("artifact") != ARTIFACT or set(found) - {"behind"} != _KEYS:
        raise ArtifactError(f"{path}: is no {ARTIFACT}")
    both = found["both"]
    if not isinstance(both, list) or len(both) != 2:
        raise ArtifactError(f"{path}: both is no pair of speeds")
    to, back = (_number(path, "a speed", found[name], _SPEEDS) for name in ("to", "back"))
    one, other = (_number(path, "both", each, _SPEEDS) for each in both)
    latency = _number(path, "latency", found["latency"], _LATENCIES)
    room = _number(path, "room", found["room"], _SIZES)
    behind = found.get("behind", "")
    texts = isinstance(found["folder"], str) and isinstance(behind, str)
    known = found["memory"] == FAR if behind else found["memory"] in ("disk", "host")
    if not (texts and known) or room != int(room):
        raise ArtifactError(f"{path}: does not say which memory has how much room")
    speed = LinkSpeed(to, back, (one, other), latency)
    return MeasuredLink(speed, found["memory"], int(room), found["folder"], behind)


def _number(path: Path | str, name: str, value: Any, within: tuple[float, float]) -> float:
    """A finite number of a range."""
    plain = isinstance(value, int | float) and not isinstance(value, bool)
    if not plain or not within[0] <= value <= within[1] or not math.isfinite(value):
        raise ArtifactError(f"{path}: {name} is none from {within[0]:g} to {within[1]:g}")
    return float(value)
