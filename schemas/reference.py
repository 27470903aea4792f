"""`tightfit.reference/1`: what a model's own step leaves, takes and how long it takes on a device.

It is measured once, in a process of its own, for the validations of all plans of the model. Next to
it stands `tightfit.memory_timeline/2`, the live bytes of that step over time.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from tightfit.schemas import store
from tightfit.schemas.arrow_fields import text_field
from tightfit.schemas.costs import ProfileDevice
from tightfit.util.errors import ArtifactError

ResultDigests = Mapping[str, str]
"""The digest of each thing that some steps leave behind, by its name."""

REFERENCE = store.ArtifactType(
    "tightfit.reference",
    1,
    pa.schema([text_field("round"), text_field("name"), text_field("digest")]),
)


@dataclass(frozen=True)
class ReferenceMeasurement:
    """A model's own step, measured.

    `graph` is the digest of the traced step, `device` what ran it. `rounds` has, for each round of
    a comparison that the model can run, the digests of what its steps leave. `peak` and
    `accumulate_peak` are the bytes of a step above what was there before, with `.grad` absent and
    with `.grad` there; both are None where the step does not fit on the device. `seconds` are those
    of single steps, without the part `lost` that other work on the machine took. `resident_peak`
    are the most bytes of RSS of a step above what the process had before it, None where that is not
    known.
    """

    graph: str
    device: ProfileDevice
    rounds: Mapping[str, ResultDigests]
    peak: int | None = None
    accumulate_peak: int | None = None
    seconds: tuple[float, ...] = ()
    lost: float = 0.0
    resident_peak: int | None = None


def write_reference(path: Path | str, reference: ReferenceMeasurement) -> str:
    """Writes a reference and returns its digest."""
    rows = [
        {"round": one, "name": name, "digest": digest}
        for one, digests in reference.rounds.items()
        for name, digest in digests.items()
    ]
    measured = {**asdict(reference), "rounds": list(reference.rounds)}
    return store.write(path, REFERENCE, rows, {"measured": json.dumps(measured, sort_keys=True)})


def read_reference(path: Path | str) -> ReferenceMeasurement:
    """Reads a reference; raises ArtifactError where the file is damaged or says what no step can
    take."""
    artifact = store.read(path, REFERENCE)
    try:
        measured = json.loads(artifact.metadata["measured"])
        rounds: dict[str, dict[str, str]] = {name: {} for name in measured.pop("rounds")}
        for row in artifact.rows:
            rounds[row["round"]][row["name"]] = row["digest"]
        device = ProfileDevice(**measured.pop("device"))
        seconds = tuple(measured.pop("seconds"))
        found = ReferenceMeasurement(rounds=rounds, device=device, seconds=seconds, **measured)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ArtifactError(f"{path}: does not say what a step takes ({error!r})") from error
    peaks = (found.peak, found.accumulate_peak, found.resident_peak)
    if not all(_is_size(peak) for peak in peaks) or not all(map(_is_time, (*seconds, found.lost))):
        raise ArtifactError(f"{path}: has bytes or seconds that no step takes")
    return found


def _is_size(value: Any) -> bool:
    return value is None or (type(value) is int and 0 <= value < 1 << 62)


def _is_time(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value) and value >= 0
