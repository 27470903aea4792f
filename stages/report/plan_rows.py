"""A plan that is of no budget, as the index and the summary show it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tightfit.schemas.plan_folders import PlanFolder
from tightfit.stages.report.outcomes import PlanOutcome


@dataclass(frozen=True)
class PlanRow:
    """A plan and what became of it. `target` says in a word what it is planned for, `page` is that
    of the plan, None where there is none. `predicted` are bytes, `gap` is that to the bound, `note`
    a remark, and `log` the file with the error that `outcome` tells. `status` is the status of the
    plan itself, as it was measured, "" where there is no plan."""

    folder: PlanFolder
    target: str
    page: Path | None
    outcome: PlanOutcome
    predicted: int | None = None
    gap: float | None = None
    note: str = ""
    log: Path | None = None
    status: str = ""
