"""`tightfit.operation_timeline/2`: a sequence with transfers as the simulator played it, operation
by operation, in the order of the sequence.

`stream` names what runs an operation ("cuda:0/compute", "cuda:0/to-host"), from `start` to `end`
seconds, `wait_seconds` seconds after its stream could have begun; `live` bytes are on the device
and `host_bytes` bytes on the host after it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

import pyarrow as pa

from tightfit.schemas import store
from tightfit.schemas.arrow_fields import integer_field, number_field, text_field
from tightfit.schemas.sequence import OPERATION_FIELDS, ChainOperation, operation_from_row
from tightfit.util.errors import ArtifactError


@dataclass(frozen=True)
class TimedOperation:
    """One operation in its stream; see the module for the figures."""

    operation: ChainOperation
    stream: str
    start: float
    end: float
    wait_seconds: float
    live: int
    host_bytes: int


OPERATION_TIMELINE = store.ArtifactType(
    "tightfit.operation_timeline",
    2,
    pa.schema(
        [
            integer_field("step"),
            *OPERATION_FIELDS,
            text_field("stream"),
            number_field("start"),
            number_field("end"),
            number_field("wait_seconds"),
            integer_field("live"),
            integer_field("host_bytes"),
        ]
    ),
)


def write_operation_timeline(
    path: Path | str, steps: Iterable[TimedOperation], chain_digest: str = ""
) -> str:
    """Writes the steps and returns the digest; `chain_digest` names the chain they are for."""
    rows = []
    for index, step in enumerate(steps):
        figures = {name: cell for name, cell in vars(step).items() if name != "operation"}
        rows.append({"step": index, **asdict(step.operation), **figures})
    return store.write(path, OPERATION_TIMELINE, rows, {"chain": chain_digest})


def read_operation_timeline(path: Path | str) -> list[TimedOperation]:
    """Reads the steps; raises ArtifactError when one is out of place, unknown, or ends before it
    starts."""
    steps = []
    names = [field.name for field in OPERATION_FIELDS]
    for index, row in enumerate(store.read(path, OPERATION_TIMELINE).rows):
        what = f"{path}: step {index}"
        if row.pop("step") != index:
            raise ArtifactError(f"{what} is out of place")
        done = operation_from_row({name: row.pop(name) for name in names}, what)
        step = TimedOperation(done, **row)
        figures = (step.start, step.end, step.wait_seconds)
        if not all(math.isfinite(figure) and figure >= 0 for figure in figures):
            raise ArtifactError(f"{what} ({done}) has a time that is negative or not finite")
        if step.end < step.start or not step.stream or min(step.live, step.host_bytes) < 0:
            raise ArtifactError(f"{what} ({done}) is in no stream, ends early or holds less than 0")
        steps.append(step)
    return steps
