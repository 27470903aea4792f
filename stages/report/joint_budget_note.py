"""What is said of a budget that several samples share and that is too small for one of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tightfit.schemas.plan import read_plan
from tightfit.stages.report.load import PlanResult


def describe_joint_budget(folder: Path, samples: Sequence[str], result: PlanResult) -> str:
    """The sentence about the plan of a model in a folder, with one smallest budget for all of its
    `samples`, by name; "" if the budget fits all of them, or is that of the model alone. Raises
    ArtifactError if a plan is damaged."""
    files = [folder.parent / name / result.folder / "plan.json" for name in samples]
    plans = [read_plan(path) for path in files if path.exists()]
    smallest = [plan.smallest_budget or 0 for plan in plans if not plan.feasible]
    if not smallest:
        return ""
    asked = f"{result.plan.budget}, {result.plan.budget_total or 0:,} bytes"
    return (
        f"The joint budget of {' and '.join(samples)} ({asked}) does not fit all of them: the "
        f"smallest joint budget known to work is {max(smallest):,} bytes."
    )
