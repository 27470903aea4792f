"""The files of the results of models, of all or of those that a run was for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from tightfit.schemas.config import EAGER_FOLDER
from tightfit.util.strategies import baseline_names

PlannedPoints = Mapping[str, Iterable[str] | None]
"""The points that were planned, as strategy/budget, by model; None for all that are there."""

PAGE_DONE_FILE = "report.done"
"""The mark of a model whose page is done: the points that the page shows, one a line."""


def read_shown_points(folder: Path, models: Iterable[str]) -> PlannedPoints:
    """The points that the pages of models show, None for all of a model whose page is not done."""
    marks = {name: folder / name / PAGE_DONE_FILE for name in models}
    return {
        name: (mark.read_text().split() or None) if mark.exists() else None
        for name, mark in marks.items()
    }


def point_files(folder: Path, name: str, points: Iterable[str] | None) -> list[Path]:
    """The files of a name in the folders of points, of all points if none are named."""
    if points is None:
        return sorted(folder.glob(f"*/*/{name}"))
    return [path for point in sorted(points) if (path := folder / point / name).exists()]


def index_files(folder: Path, curves: bool, points: Iterable[str] | None) -> list[Path]:
    """What an index reads of a model: costs, plans, measurements, and the frontiers, of baselines
    alone without `curves`."""
    known = [
        path
        for name in ("costs.arrow", f"{EAGER_FOLDER}/costs.arrow")
        for path in folder.glob(name)
    ]
    for name in ("plan.json", "measurement.arrow"):
        known += point_files(folder, name, points)
    for place in (folder, folder / EAGER_FOLDER):
        known += frontier_files(place, curves, points)
    return sorted(known)


def frontier_files(folder: Path, curves: bool, points: Iterable[str] | None) -> list[Path]:
    """The frontiers that are shown of those in a folder: those of the strategies of points."""
    found = sorted(folder.glob("*/frontier.arrow"))
    if points is not None:
        strategies = {point.partition("/")[0] for point in points}
        found = [path for path in found if path.parent.name in strategies]
    return [path for path in found if curves or path.parent.name in baseline_names()]
