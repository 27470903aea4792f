"""`tightfit.pipeline_measurement/3`: what the ranks of a pipeline did, beside one process and what
was promised. A JSON file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from tightfit.schemas import store
from tightfit.schemas.store import find_mistyped_field
from tightfit.util.errors import ArtifactError

PIPELINE_MEASUREMENT_ARTIFACT = "tightfit.pipeline_measurement/3"
FAILED_STATUS = "failed"


@dataclass(frozen=True)
class TimedAction:
    """An action of a rank as it ran: seconds from the begin of the step."""

    kind: str
    subject: int
    microbatch: int
    start: float
    end: float


@dataclass(frozen=True)
class MeasuredRank:
    """A rank: bytes of its parameters and buffers (`baseline`), of its step beyond these as
    predicted and as measured, and what its device has. Then the median seconds of `steps` steps,
    the largest differences from one process, and the name of the first thing that differs in a bit,
    "" where none does. `timeline` is one of the steps."""

    rank: int
    device: str
    baseline: int
    memory: int
    predicted_peak: int
    measured_peak: int
    seconds: float
    steps: int
    loss_difference: float
    output_difference: float
    gradient_difference: float
    buffer_difference: float
    first_difference: str
    timeline: list[TimedAction]

    @property
    def within_budget(self) -> bool:
        """Whether all is within what the device has."""
        return self.baseline + self.measured_peak <= self.memory


@dataclass(frozen=True)
class PipelineMeasurement:
    """A pipeline, measured. `status` is the plan's own, or "failed" where a rank contradicts it;
    `message` says it in words. `single_process_seconds` is the median seconds of a step of one
    process. The ranks had so many `processors` on a machine without devices of their own, 0 if
    nothing ran."""

    model: str
    strategy: str
    status: str
    message: str
    microbatches: int
    single_process_seconds: float
    ranks: list[MeasuredRank]
    processors: int = 0

    @property
    def shares_processors(self) -> bool:
        """Whether there were more ranks than processors, so that its time compares no plans."""
        return self.processors < len(self.ranks)


def write_pipeline_measurement(path: Path | str, measured: PipelineMeasurement) -> None:
    """Writes a measurement as JSON."""
    store.write_json(path, {"artifact": PIPELINE_MEASUREMENT_ARTIFACT, **asdict(measured)})


def read_pipeline_measurement(path: Path | str) -> PipelineMeasurement:
    """Reads a measurement; raises ArtifactError, naming the file, where it is none."""
    document = store.read_json(path)
    if document.pop("artifact", None) != PIPELINE_MEASUREMENT_ARTIFACT:
        raise ArtifactError(f"{path}: is no {PIPELINE_MEASUREMENT_ARTIFACT}")
    try:
        ranks = [_rank(row) for row in document["ranks"]]
        if document.keys() != {part.name for part in fields(PipelineMeasurement)}:
            raise ValueError("unknown keys")
        if find_mistyped_field(PipelineMeasurement, document):
            raise ValueError("another type")
        if [rank.rank for rank in ranks] != list(range(len(ranks))):
            raise ValueError("ranks that are out of their place")
        return PipelineMeasurement(**{**document, "ranks": ranks})
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ArtifactError(f"{path}: does not hold what a measurement has") from error


def measured_rank_from_row(row: Mapping[str, Any]) -> MeasuredRank:
    """A rank of its plain data."""
    return _rank(row)


def _rank(row: Mapping[str, Any]) -> MeasuredRank:
    timeline = [TimedAction(**action) for action in row["timeline"]]
    if find_mistyped_field(MeasuredRank, row) or any(
        find_mistyped_field(TimedAction, one) for one in row["timeline"]
    ):
        raise ValueError("another type")
    return MeasuredRank(**{**row, "timeline": timeline})
