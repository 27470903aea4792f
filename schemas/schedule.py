"""`tightfit.schedule/1`: a training step as a list of actions on lanes, in the order of issue."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal, cast, get_args

import pyarrow as pa

from schemas import store
from schemas.arrow import integer, number, text
from schemas.errors import ArtifactError
from schemas.graph import NONE

Action = Literal[
    "compute",  # run `op`; `in_place` is the value it overwrites, or NONE
    "write",  # run `op`, which mutates a buffer
    "free",  # forget the storage of `value` with all its views, or the random state saved for `op`
    "gradient",  # hand the finished gradient `value` to autograd
    "loss",  # forward ends, the caller's loss runs, backward begins
    "save_random",  # keep the generator's state from before `op`
    "restore_random",  # the next action, a compute of `op`, draws from its saved state
]


@dataclass(frozen=True)
class Step:
    """One action. `op` and `value` are ids in the graph or NONE.

    `start` and `end` are seconds from the beginning of the step; `memory` names the memory that
    `live` (after the action) and `peak` (within it) count, in bytes above what was allocated when
    the step began. Lanes and memories are resources by name ("cpu/compute", "cpu/memory").
    """

    action: Action
    op: int = NONE
    value: int = NONE
    in_place: int = NONE
    lane: str = ""
    memory: str = ""
    start: float = 0.0
    end: float = 0.0
    live: int = 0
    peak: int = 0


SCHEDULE = store.ArtifactType(
    "tightfit.schedule",
    1,
    pa.schema(
        [
            integer("step"),
            text("lane"),
            text("action"),
            integer("op"),
            integer("value"),
            integer("in_place"),
            number("start"),
            number("end"),
            text("memory"),
            integer("live"),
            integer("peak"),
        ]
    ),
)


def write_schedule(path: Path | str, steps: Iterable[Step], graph_digest: str = "") -> str:
    """Writes a schedule and returns its digest; `graph_digest` names the graph it is for."""
    rows = [{"step": index, **asdict(step)} for index, step in enumerate(steps)]
    return store.write(path, SCHEDULE, rows, {"graph": graph_digest})


def read_schedule(path: Path | str) -> list[Step]:
    """Reads a schedule; raises ArtifactError when an action is unknown or a step misplaced."""
    steps = []
    for index, row in enumerate(store.read(path, SCHEDULE).rows):
        if row.pop("step") != index:
            raise ArtifactError(f"{path}: step {index} is out of place")
        if row["action"] not in get_args(Action):
            raise ArtifactError(f"{path}: step {index} has the unknown action {row['action']!r}")
        steps.append(Step(**{**row, "action": cast(Action, row["action"])}))
    return steps
