"""`tightfit.schedule/3`: a training step as a list of actions on streams, in the order of issue."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from tightfit.schemas import store
from tightfit.schemas.actions import ACTION_COLUMNS, Action, action_from_row, action_to_row
from tightfit.schemas.arrow_fields import integer_field, number_field, text_field
from tightfit.schemas.link import HostLink, parse_host_link
from tightfit.schemas.optimizer_plan import SAMPLE_FOLDER, OptimizerPlan, parse_optimizer_plan
from tightfit.util.errors import ArtifactError


@dataclass(frozen=True)
class ScheduleStep:
    """One action on its stream.

    `start` and `end` are seconds from the beginning of the step. `live` (after the action) and
    `peak` (within it) are bytes above what was allocated when the step began, of the memory that
    `memory` names: the one that the action changes, that of the device where it changes none.
    Streams and memories are resources by name ("cpu/compute", "cpu/to-host", "cpu/memory",
    "host/memory").
    """

    action: Action
    stream: str = ""
    memory: str = ""
    start: float = 0.0
    end: float = 0.0
    live: int = 0
    peak: int = 0


SCHEDULE = store.ArtifactType(
    "tightfit.schedule",
    3,
    pa.schema(
        [
            integer_field("step"),
            text_field("stream"),
            text_field("action"),
            integer_field("op"),
            integer_field("value"),
            integer_field("in_place"),
            number_field("start"),
            number_field("end"),
            text_field("memory"),
            integer_field("live"),
            integer_field("peak"),
        ]
    ),
)


_SMALL_SIZES_KEY = "small_sizes_steps"
"""Names, in the metadata, the number of steps of a second plan for small sizes of calls."""


def write_schedule(
    path: Path | str,
    steps: Iterable[ScheduleStep],
    graph_digest: str = "",
    link: HostLink | None = None,
    updates: OptimizerPlan | None = None,
    small: Sequence[ScheduleStep] = (),
) -> str:
    """Writes a schedule and returns its digest; `graph_digest` names the graph it is for, `link` is
    what its transfers take, `updates` the optimizer whose steps are among its own. Behind it stand
    the steps of a second plan for `small` sizes of calls, if there is one."""
    rows = [
        {**vars(step), **action_to_row(step.action), "step": index}
        for part in (steps, small)
        for index, step in enumerate(part)
    ]
    metadata = {"graph": graph_digest} | ({"link": link.text()} if link is not None else {})
    metadata |= {"updates": updates.text()} if updates is not None else {}
    metadata |= {_SMALL_SIZES_KEY: str(len(small))} if small else {}
    return store.write(path, SCHEDULE, rows, metadata)


def schedule_link(path: Path | str) -> HostLink | None:
    """The link that a schedule's transfers take, None where it was planned without one; raises
    ArtifactError where what it says is none."""
    said = store.read_header(path).metadata.get("link")
    return None if said is None else parse_host_link(said, str(path))


def schedule_optimizer_plan(path: Path | str) -> OptimizerPlan | None:
    """The optimizer of a schedule, None where it has none; raises ArtifactError where what it says
    is none."""
    said = store.read_header(path).metadata.get("updates")
    return None if said is None else parse_optimizer_plan(said, str(path))


def find_schedule_graph(schedule: Path | str, graphs: Sequence[Path]) -> Path:
    """The graph that a schedule is of, of several in files; the only one is taken for that of a
    schedule that names none. Raises ArtifactError where it is of none of them."""
    digest = store.read_header(schedule).metadata.get("graph", "")
    if len(graphs) == 1 and not digest:
        return graphs[0]
    found = store.find_by_digest(digest, graphs)
    if found is None:
        names = " or ".join(map(str, graphs))
        raise ArtifactError(f"{schedule}: is the schedule of another graph than {names}")
    return found


def find_sample_graph(schedule: Path | str, graph: Path) -> Path:
    """The graph that the schedule of a whole step is of: the one of its model or, where the step
    has several samples, that of one of these in a folder beside; the model's where it is of none.
    """
    beside = sorted(graph.parent.glob(f"{SAMPLE_FOLDER}*/{graph.name}"))
    if not beside:
        return graph
    digest = store.read_header(schedule).metadata.get("graph", "")
    return store.find_by_digest(digest, [graph, *beside]) or graph


def read_schedule(path: Path | str) -> list[ScheduleStep]:
    """Reads a schedule; raises ArtifactError when an action is none or a step misplaced."""
    return _read_schedules(path)[0]


def read_small_schedule(path: Path | str) -> list[ScheduleStep]:
    """Reads the steps of a second plan for small sizes of calls, none where there is none; raises
    ArtifactError as `read_schedule` does."""
    return _read_schedules(path)[1]


def _read_schedules(path: Path | str) -> tuple[list[ScheduleStep], list[ScheduleStep]]:
    artifact = store.read(path, SCHEDULE)
    said, rows = artifact.metadata.get(_SMALL_SIZES_KEY, "0"), [*artifact.rows]
    if not said.isdecimal() or int(said) > len(rows):
        raise ArtifactError(f"{path}: does not have {said} steps for small sizes")
    first = len(rows) - int(said)
    return _read_steps(path, rows[:first]), _read_steps(path, rows[first:])


def _read_steps(path: Path | str, rows: Sequence[dict[str, Any]]) -> list[ScheduleStep]:
    steps = []
    for index, row in enumerate(rows):
        if row.pop("step") != index:
            raise ArtifactError(f"{path}: step {index} is out of place")
        action = action_from_row(row, f"{path}: step {index}")
        figures = {name: cell for name, cell in row.items() if name not in ACTION_COLUMNS}
        steps.append(ScheduleStep(**{**figures, "action": action}))
    return steps
