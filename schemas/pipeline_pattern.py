"""`tightfit.pattern/1`: what the devices and links of a pipeline do again and again (S ch. 4.7).

A pattern of period T with k batches holds every operation of every stage k times. In period j the
operation that starts at `start` with shift h begins at j T + start and works on batch j k + h. The
first backward of stage 1 in the pattern has shift 0. An operation may end after the period does.

Stages are numbered from 1 in the order of the chain. `forward` and `backward` run on a device,
named as in the machine; `send` brings the output of a stage to the device of the next one and
`receive` the gradient of this output back, both over a link, named "A/B" by its ends.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal, get_args

import pyarrow as pa

from tightfit.schemas import store
from tightfit.schemas.arrow_fields import integer_field, number_field, text_field
from tightfit.util.errors import ArtifactError

PatternKind = Literal["forward", "backward", "send", "receive"]

MAX_STAGES = 1 << 20
MAX_BATCHES = 1 << 16
MAX_SHIFT = 1 << 40
"""Shifts of no pattern are further from 0."""


@dataclass(frozen=True)
class PatternOperation:
    """One operation: where and when it begins, and on which batch (`shift`); times are seconds."""

    device: str
    stage: int
    operation: PatternKind
    start: float
    duration: float
    shift: int

    def __str__(self) -> str:
        return f"{self.operation} of stage {self.stage}"


@dataclass(frozen=True)
class PipelinePattern:
    """Operations that repeat every `period` seconds, on `batches` batches a period."""

    period: float
    batches: int
    operations: list[PatternOperation]

    @property
    def stages(self) -> int:
        """How many stages there are."""
        return max((operation.stage for operation in self.operations), default=0)


PATTERN_FILE = "pattern.arrow"
NO_PATTERN = PipelinePattern(0.0, 0, [])
"""What is written where no pipeline fits."""

PIPELINE_PATTERN = store.ArtifactType(
    "tightfit.pattern",
    1,
    pa.schema(
        [
            text_field("device"),
            integer_field("stage"),
            text_field("operation"),
            number_field("start"),
            number_field("duration"),
            integer_field("shift"),
        ]
    ),
)


def write_pipeline_pattern(
    path: Path | str, pattern: PipelinePattern, chain_digest: str = ""
) -> str:
    """Checks a pattern, writes it and returns its digest; `chain_digest` names its chain."""
    check_pipeline_pattern(pattern, str(path))
    metadata = {
        "period": repr(pattern.period),
        "batches": str(pattern.batches),
        "chain": chain_digest,
    }
    return store.write(
        path, PIPELINE_PATTERN, [asdict(row) for row in pattern.operations], metadata
    )


def read_pipeline_pattern(path: Path | str) -> PipelinePattern:
    """Reads a pattern; raises ArtifactError naming the file and the first figure that is amiss."""
    artifact = store.read(path, PIPELINE_PATTERN)
    try:
        period = float(artifact.metadata["period"])
        batches = int(artifact.metadata["batches"])
    except (KeyError, ValueError) as error:
        raise ArtifactError(f"{path}: the metadata has no period or no batches") from error
    pattern = PipelinePattern(period, batches, [PatternOperation(**row) for row in artifact.rows])
    check_pipeline_pattern(pattern, str(path))
    return pattern


def check_pipeline_pattern(pattern: PipelinePattern, where: str) -> None:
    """Raises ArtifactError unless all figures are in range and stages run from 1 without a gap, or
    it is `NO_PATTERN`.

    Whether the pattern can be run is for the simulator to say
    (`stages/simulate/pipeline_pattern.py`)."""
    if pattern == NO_PATTERN:
        return
    if not (math.isfinite(pattern.period) and pattern.period > 0):
        raise ArtifactError(f"{where}: the period is {pattern.period}, expected more than 0")
    if not 1 <= pattern.batches <= MAX_BATCHES:
        raise ArtifactError(f"{where}: {pattern.batches} batches a period are none or too many")
    if not pattern.operations:
        raise ArtifactError(f"{where}: the pattern has no operations")
    for row, operation in enumerate(pattern.operations):
        _check_operation(operation, pattern.period, f"{where}: row {row}")
    _check_stages(pattern.operations, where)


def _check_operation(operation: PatternOperation, period: float, where: str) -> None:
    if operation.operation not in get_args(PatternKind):
        raise ArtifactError(f"{where} has the unknown operation {operation.operation!r}")
    if not operation.device or not operation.device.isprintable():
        raise ArtifactError(f"{where} names no device")
    if not 1 <= operation.stage <= MAX_STAGES:
        raise ArtifactError(f"{where} has stage {operation.stage}, expected 1 or more")
    if not (math.isfinite(operation.start) and 0 <= operation.start < period):
        raise ArtifactError(
            f"{where} has start = {operation.start}, expected from 0 to less than {period}"
        )
    if not (math.isfinite(operation.duration) and operation.duration >= 0):
        raise ArtifactError(
            f"{where} has duration = {operation.duration}, which is negative or not finite"
        )
    if abs(operation.shift) > MAX_SHIFT:
        raise ArtifactError(f"{where} has shift = {operation.shift}, which is out of range")


def _check_stages(operations: Sequence[PatternOperation], where: str) -> None:
    found = {operation.stage for operation in operations}
    if missing := set(range(1, max(found) + 1)) - found:
        raise ArtifactError(f"{where}: stage {min(missing)} has no operation")
