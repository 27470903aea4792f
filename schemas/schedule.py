"""`tightfit.schedule/1`: a training step as a list of actions on lanes, in the order of issue."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from tightfit.schemas import store
from tightfit.schemas.actions import COLUMNS, Action, action_of, row_of
from tightfit.schemas.arrow import integer, number, text
from tightfit.schemas.errors import ArtifactError
from tightfit.schemas.link import HostLink, link_of
from tightfit.schemas.updates import Updates, updates_of


@dataclass(frozen=True)
class Step:
    """One action on its lane.

    `start` and `end` are seconds from the beginning of the step. `live` (after the action) and
    `peak` (within it) are bytes above what was allocated when the step began, of the memory that
    `memory` names: the one that the action changes, that of the device where it changes none. Lanes
    and memories are resources by name ("cpu/compute", "cpu/to-host", "cpu/memory", "host/memory").
    """

    action: Action
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


def write_schedule(
    path: Path | str,
    steps: Iterable[Step],
    graph_digest: str = "",
    link: HostLink | None = None,
    updates: Updates | None = None,
) -> str:
    """Writes a schedule and returns its digest; `graph_digest` names the graph it is for, `link` is
    what its transfers take, `updates` the optimiser whose steps are among its own."""
    rows = [
        {**vars(step), **row_of(step.action), "step": index} for index, step in enumerate(steps)
    ]
    metadata = {"graph": graph_digest} | ({"link": link.text()} if link is not None else {})
    metadata |= {"updates": updates.text()} if updates is not None else {}
    return store.write(path, SCHEDULE, rows, metadata)


def schedule_link(path: Path | str) -> HostLink | None:
    """The link that a schedule's transfers take, None where it was planned without one; raises
    ArtifactError where what it says is none."""
    said = store.header(path).metadata.get("link")
    return None if said is None else link_of(said, str(path))


def schedule_updates(path: Path | str) -> Updates | None:
    """The optimiser of a schedule, None where it has none; raises ArtifactError where what it says
    is none."""
    said = store.header(path).metadata.get("updates")
    return None if said is None else updates_of(said, str(path))


def graph_of(schedule: Path | str, graphs: Sequence[Path]) -> Path:
    """The graph that a schedule is of, of several in files; the only one is taken for it. Raises
    ArtifactError where it is of none of them."""
    if len(graphs) == 1:
        return graphs[0]
    found = store.with_digest(store.header(schedule).metadata.get("graph", ""), graphs)
    if found is None:
        raise ArtifactError(f"{schedule}: is the schedule of another graph")
    return found


def read_schedule(path: Path | str) -> list[Step]:
    """Reads a schedule; raises ArtifactError when an action is none or a step misplaced."""
    steps = []
    for index, row in enumerate(store.read(path, SCHEDULE).rows):
        if row.pop("step") != index:
            raise ArtifactError(f"{path}: step {index} is out of place")
        action = action_of(row, f"{path}: step {index}")
        figures = {name: cell for name, cell in row.items() if name not in COLUMNS}
        steps.append(Step(**{**figures, "action": action}))
    return steps
