"""`tightfit.link/3`: the link from a device to its offload target, as it was measured."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tightfit.schemas.costs import PREEMPTION_THRESHOLD
from tightfit.schemas.optimizer_plan import LinkSpeed
from tightfit.schemas.store import read_json, write_json
from tightfit.util.errors import ArtifactError

LINK_ARTIFACT = "tightfit.link/3"
SECOND_TIER_DISK = "far-disk"
"""The name of a second offload tier, a disk behind the slow one."""
_MOST_BYTES = 1 << 16
_KEYS = {"artifact", "to", "back", "both", "latency", "memory", "room", "folder"}
_KEYS |= {"overhead", "overhead_per_byte", "when", "lost", "sample"}
_SPEEDS = (1.0, 1e18)
_LATENCIES = (0.0, 1.0)
_PER_BYTE = (0.0, 1e-3)
_SIZES = (1, 10**18)
_WHEN = re.compile(r"(\d{4}-\d{2}-\d{2} \d{2}:\d{2} UTC)?")


@dataclass(frozen=True)
class MeasuredLink:
    """The `speed` of a link to the slow `memory` ("disk" or "host"), which had `room` for so many
    bytes then; `folder` is that of a disk, "" for the host's memory. A second offload tier (`FAR`)
    is `behind` another one: the folder of a disk, or "host". It was measured at `when`, in
    Universal Time; other work on the machine took the part `lost` of the time, which the speed is
    without. A few short transfers had the speed `sample` then, in bytes a second."""

    speed: LinkSpeed
    memory: str
    room: int
    folder: str = ""
    behind: str = ""
    when: str = ""
    lost: float = 0.0
    sample: float = 1.0

    @property
    def said(self) -> str:
        """When it was measured and how fast it was, for people."""
        speed = self.speed
        own = f"{1e6 * speed.overhead:.0f} microseconds of what computes"
        own += f", and {1e12 * speed.overhead_per_byte:.0f} more for each MB of it"
        busy = (
            f" while other work took {self.lost:.0%} of the time"
            if self.lost >= PREEMPTION_THRESHOLD
            else ""
        )
        return (
            f"measured here{f' {self.when}' if self.when else ''}{busy}: {speed.to:.3g} bytes a "
            f"second leave and {speed.back:.3g} return alone, {speed.both[0]:.3g} and "
            f"{speed.both[1]:.3g} both at once; a transfer takes {own} "
            "(`tightfit run --remeasure`, or another `store`, measures it again)"
        )


def write_measured_link(path: Path | str, link: MeasuredLink) -> None:
    """Writes a link as JSON; raises ArtifactError where that cannot be done."""
    speed = link.speed
    figures = {"to": speed.to, "back": speed.back, "both": list(speed.both)}
    times = {"latency": speed.latency, "overhead": speed.overhead}
    times |= {"overhead_per_byte": speed.overhead_per_byte}
    more = {**times, "memory": link.memory, "room": link.room}
    more |= {"folder": link.folder, **({"behind": link.behind} if link.behind else {})}
    about = {"when": link.when, "lost": link.lost, "sample": link.sample}
    write_json(path, {"artifact": LINK_ARTIFACT, **figures, **more, **about})


def read_measured_link(path: Path | str) -> MeasuredLink:
    """Reads a link; raises ArtifactError where the file holds none."""
    found = read_json(path, _MOST_BYTES)
    if found.get("artifact") != LINK_ARTIFACT or set(found) - {"behind"} != _KEYS:
        raise ArtifactError(f"{path}: is no {LINK_ARTIFACT}")
    both = found["both"]
    if not isinstance(both, list) or len(both) != 2:
        raise ArtifactError(f"{path}: both is no pair of speeds")
    to, back = (_number(path, "a speed", found[name], _SPEEDS) for name in ("to", "back"))
    one, other = (_number(path, "both", each, _SPEEDS) for each in both)
    latency = _number(path, "latency", found["latency"], _LATENCIES)
    overhead = _number(path, "overhead", found["overhead"], _LATENCIES)
    per_byte = _number(path, "overhead_per_byte", found["overhead_per_byte"], _PER_BYTE)
    room = _number(path, "room", found["room"], _SIZES)
    behind = found.get("behind", "")
    texts = isinstance(found["folder"], str) and isinstance(behind, str)
    known = found["memory"] == SECOND_TIER_DISK if behind else found["memory"] in ("disk", "host")
    if not (texts and known) or room != int(room):
        raise ArtifactError(f"{path}: does not say which memory has how much room")
    if not isinstance(found["when"], str) or not _WHEN.fullmatch(found["when"]):
        raise ArtifactError(f"{path}: does not say when it was measured")
    lost = _number(path, "lost", found["lost"], (0.0, 1.0))
    sample = _number(path, "sample", found["sample"], _SPEEDS)
    speed = LinkSpeed(to, back, (one, other), latency, overhead, per_byte)
    about = (behind, found["when"], lost, sample)
    return MeasuredLink(speed, found["memory"], int(room), found["folder"], *about)


def _number(path: Path | str, name: str, value: Any, within: tuple[float, float]) -> float:
    """A finite number of a range."""
    plain = isinstance(value, int | float) and not isinstance(value, bool)
    if not plain or not within[0] <= value <= within[1] or not math.isfinite(value):
        raise ArtifactError(f"{path}: {name} is none from {within[0]:g} to {within[1]:g}")
    return float(value)
