"""`tightfit.measurement/8`: what a planned module did on the device, beside what was promised.

Next to it stands `tightfit.memory_timeline/2`, the live bytes of a measured step over time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import pyarrow as pa

from tightfit.schemas import store
from tightfit.schemas.arrow_fields import boolean_field, integer_field, number_field, text_field
from tightfit.schemas.costs import PREEMPTION_THRESHOLD
from tightfit.schemas.dynamic_plan import (
    SizeMeasurement,
    decode_size_measurements,
    encode_size_measurements,
)
from tightfit.util.errors import ArtifactError

FAILED_STATUS = "failed"
"""The status of a plan whose measurement contradicts it; `message` says how."""

CPU = "CPU"
CPU_IN_TURNS, CPU_APART, CPU_ONE_PROCESS = f"{CPU} in turns", f"{CPU} apart", f"{CPU} one process"
APART, ONE_PROCESS = "apart", "one process"
STEP_TIMINGS = {
    CPU_IN_TURNS: "CPU time of steps in turns, each model in a process of its own",
    CPU_APART: "CPU time of steps, each model in a process of its own",
    CPU_ONE_PROCESS: "CPU time of steps in turns, in one process",
    APART: "steps, each model in a process of its own",
    ONE_PROCESS: "steps in turns, in one process",
}
"""How steps of a plan and of its model were timed, in words."""

SCATTER_THRESHOLD = 1.5
"""Quartiles of the time ratio further apart than this factor say that other work disturbed it."""

MAX_TIMELINE_POINTS = 2000
"""The most points that are kept of one memory line."""


@dataclass(frozen=True)
class Measurement:
    """One plan, measured. Sizes are bytes, times seconds; what was not measured is None,
    and so is the budget of a baseline.

    `status` is the plan's own, or "failed" where the measurement contradicts the plan; `message`
    explains either. Peaks are bytes above what was allocated when the step began: `measured_peak`
    and `original_peak` with `.grad` absent, the `accumulate` ones with `.grad` already there, of a
    whole step of microbatches the most of all but its last one;
    `original` is the original model, whose figures are None where its step does not fit, as are
    the differences then. `allocated_peak` and `reserved_peak` are what PyTorch's allocator gave of
    its blocks and had taken of a GPU at most, parameters and inputs included, where nothing else
    had run; the `predicted` ones are the plan's. `cuda_context` is what was in use of the GPU
    beside what was reserved: CUDA's context, and what other processes had. All five are None on the
    CPU. `budget_total` is what bounds the reserved bytes of a GPU. `output_difference`,
    `gradient_difference` and `buffer_difference` are the largest absolute differences over all
    samples and steps, where NaN equals NaN; `bits_equal` says whether not one bit differed.
    `time_ratio` is the median of planned over original time, with its quartiles: of `pairs`
    alternating runs, or, where these were not in turns, of all quotients of `pairs` runs of each;
    `timing` says how they were timed (`STEP_TIMINGS`). Times by the clock are without the part
    `preemption_fraction` that other work on the machine took of them. `plan_seconds` is how long
    planning took. Of a plan that sends to another
    memory, which is called `offload_target` ("disk" or "host", "" for none),
    `predicted_offload_peak` and `offload_peak` are the most bytes there; `predicted_wait_seconds`
    is how long a step waits for transfers by the plan, and `wait_seconds` the median of what it
    waited. `resident_peak` and `original_resident_peak` are the most bytes of RSS of a step above
    what the process had before it, on the CPU, with the `allocator` of C that they hold for.
    `sizes` are those at which a plan of dynamic dimensions was compared beside the largest, of
    which all other figures are."""

    model: str
    device: str
    strategy: str
    budget: str
    budget_bytes: int | None
    budget_total: int | None
    status: str
    message: str
    gap: float | None
    predicted_peak: int | None
    measured_peak: int | None = None
    original_peak: int | None = None
    accumulate_peak: int | None = None
    original_accumulate_peak: int | None = None
    predicted_allocated: int | None = None
    allocated_peak: int | None = None
    predicted_reserved: int | None = None
    reserved_peak: int | None = None
    cuda_context: int | None = None
    predicted_time: float | None = None
    measured_time: float | None = None
    original_time: float | None = None
    time_ratio: float | None = None
    time_ratio_first_quartile: float | None = None
    time_ratio_third_quartile: float | None = None
    pairs: int = 0
    timing: str = ""
    output_difference: float | None = None
    gradient_difference: float | None = None
    buffer_difference: float | None = None
    bits_equal: bool | None = None
    within_budget: bool | None = None
    peak_as_predicted: bool | None = None
    plan_seconds: float | None = None
    offload_target: str = ""
    predicted_offload_peak: int | None = None
    offload_peak: int | None = None
    predicted_wait_seconds: float | None = None
    wait_seconds: float | None = None
    preemption_fraction: float | None = None
    resident_peak: int | None = None
    original_resident_peak: int | None = None
    allocator: str = ""
    sizes: tuple[SizeMeasurement, ...] = ()

    @property
    def scattered(self) -> bool:
        """Whether the median does not say how long the plan takes: other work took much of the
        time, or the pairs differ too much: a quarter of them is below the first quartile, a quarter
        `SCATTER_THRESHOLD` times above it."""
        low, high = self.time_ratio_first_quartile, self.time_ratio_third_quartile
        if (
            self.preemption_fraction is not None
            and self.preemption_fraction >= PREEMPTION_THRESHOLD
        ):
            return True
        return low is not None and high is not None and high > SCATTER_THRESHOLD * low


def _optional_integer_field(name: str) -> pa.Field:
    return pa.field(name, pa.int64())


def _optional_number_field(name: str) -> pa.Field:
    return number_field(name, nullable=True)


def _optional_boolean_field(name: str) -> pa.Field:
    return pa.field(name, pa.bool_())


_ARROW = {
    "str": text_field,
    "int": integer_field,
    "float": number_field,
    "bool": boolean_field,
    "int | None": _optional_integer_field,
    "float | None": _optional_number_field,
    "bool | None": _optional_boolean_field,
}

MEASUREMENT = store.ArtifactType(
    "tightfit.measurement",
    8,
    pa.schema(
        [
            _ARROW[str(field.type)](field.name)
            for field in fields(Measurement)
            if field.name != "sizes"
        ]
    ),
)


def write_measurement(path: Path | str, measurement: Measurement, module: str = "") -> str:
    """Writes a measurement, one row, and returns the digest.

    `module` names the module that was measured, by `schemas.package_manifest.module_digest`; it
    stands in the metadata, as do measurements of further sizes, where there are any."""
    row, about = asdict(measurement), {"module": module}
    del row["sizes"]
    if measurement.sizes:
        about["sizes"] = encode_size_measurements(measurement.sizes)
    return store.write(path, MEASUREMENT, [row], about)


def read_measurement(path: Path | str) -> Measurement:
    """Reads a measurement; raises ArtifactError when the file is damaged or holds several rows."""
    artifact = store.read(path, MEASUREMENT)
    rows = artifact.rows
    if len(rows) != 1:
        raise ArtifactError(f"{path}: holds {len(rows)} measurements instead of one")
    sizes = decode_size_measurements(artifact.metadata.get("sizes", "[]"), str(path))
    return Measurement(**rows[0], sizes=sizes)


@dataclass(frozen=True)
class TimelinePoint:
    """After `seconds` from the begin of a step, `live` bytes are allocated above its start.

    `run` is "planned" or "original". Of a planned step that sends to an offload target, "offloaded"
    has the bytes there, "offload" and "prefetch" those that are on their way in a stream, 0 between
    two transfers, and "wait" those that the step waits for."""

    run: str
    seconds: float
    live: int


MEMORY_TIMELINE = store.ArtifactType(
    "tightfit.memory_timeline",
    2,
    pa.schema([text_field("run"), number_field("seconds"), integer_field("live")]),
)


def write_memory_timeline(path: Path | str, points: Sequence[TimelinePoint]) -> str:
    """Writes memory lines, each in the order of time, and returns the digest."""
    return store.write(path, MEMORY_TIMELINE, [asdict(point) for point in points])


def read_memory_timeline(path: Path | str) -> list[TimelinePoint]:
    """Reads memory lines; raises ArtifactError when the file is damaged or time runs backward."""
    points = [TimelinePoint(**row) for row in store.read(path, MEMORY_TIMELINE).rows]
    latest: dict[str, float] = {}
    for point in points:
        if point.seconds < latest.get(point.run, 0.0):
            raise ArtifactError(f"{path}: the line of the {point.run} step goes back in time")
        latest[point.run] = point.seconds
    return points


def downsample_timeline(
    line: Sequence[tuple[float, int]], points: int = MAX_TIMELINE_POINTS
) -> list[tuple[float, int]]:
    """At most `points` of a line's (seconds, bytes): of each stretch its highest and its last."""
    if len(line) <= points:
        return list(line)
    stretch = -(-len(line) // (points // 2))
    kept: list[tuple[float, int]] = []
    for start in range(0, len(line), stretch):
        part = line[start : start + stretch]
        highest = max(range(len(part)), key=lambda index: part[index][1])
        kept.append(part[highest])
        if highest != len(part) - 1:
            kept.append(part[-1])
    return kept
