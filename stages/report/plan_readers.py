"""Reads the plans of a run that are of no budget; `schemas/plan_folders.py` says where they are."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from tightfit.schemas.config_pipeline import PIPELINE_FOLDER
from tightfit.schemas.pipeline import PIPELINE_FILE
from tightfit.schemas.pipeline_pattern import PATTERN_FILE
from tightfit.schemas.plan_folders import PLAN_PATH, PlanFolder, find_plan_folders
from tightfit.stages.report.outcomes import DAMAGED, PlanOutcome
from tightfit.stages.report.pipeline_rows import read_pipeline_row
from tightfit.stages.report.plan_rows import PlanRow
from tightfit.util.errors import ArtifactError

PLAN_READERS: dict[str, Callable[[Path, PlanFolder], PlanRow]] = {
    PIPELINE_FOLDER: read_pipeline_row
}
"""By the name of the folder of a kind, what reads a plan of it."""
PLAN_ROW_FILES = (
    "/".join(PLAN_PATH),
    f"{PLAN_PATH[0]}/{PATTERN_FILE}",
    f"ranks/{PIPELINE_FILE}",
    "measurement.json",
)
"""What the readers read of a folder."""


def read_plan_rows(
    results: Path, asked: Iterable[PlanFolder] | None = None, strict: bool = True
) -> list[PlanRow]:
    """A row for each plan that was asked for; for each that is there where None was.

    Raises ArtifactError for a damaged file if `strict`; otherwise the row of its plan names it.
    """
    folders = find_plan_folders(results) if asked is None else asked
    rows = [_read_plan_row(results, folder, strict) for folder in folders]
    return [row for row in rows if asked is not None or row.status or row.log]


def _read_plan_row(results: Path, folder: PlanFolder, strict: bool) -> PlanRow:
    try:
        return PLAN_READERS[folder.kind](results, folder)
    except ArtifactError as error:
        if strict:
            raise
        outcome = PlanOutcome("bad", DAMAGED, str(error), None, None, False, False)
        return PlanRow(folder, folder.target, None, outcome, status=DAMAGED)


def plan_row_files(results: Path) -> list[Path]:
    """The files that the rows of all plans that are there are read from."""
    places = [folder.path(results) for folder in find_plan_folders(results)]
    found = [place / name for place in places for name in PLAN_ROW_FILES]
    return [path for path in found if path.exists()]
