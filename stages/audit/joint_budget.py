"""The plans of all samples that share a budget, by the lineage of one of them."""

from __future__ import annotations

from pathlib import Path

from tightfit.schemas.lineage import lineage_path, read_lineage
from tightfit.schemas.plan import Plan, joint_budget_total, read_plan
from tightfit.util.budget import parse_budget


def expected_budget_total(path: Path, plan: Plan) -> int | None:
    """The bytes that the budget of a plan in a file means: those of all samples that share it, by
    the plans that were read when the plan was chosen, else those of this one; None if one of these
    plans is gone. Raises ArtifactError if one is damaged."""
    budget, samples = parse_budget(plan.budget), _joint_plan_files(path)
    if budget.size is None and not all(sample.exists() for sample in samples):
        return None
    read = [] if budget.size is not None else [read_plan(sample) for sample in samples]
    return joint_budget_total(budget, read or [plan])


def _joint_plan_files(path: Path) -> list[Path]:
    """The plans that a plan was made of: only those of samples that share its budget are such."""
    if not lineage_path(path).exists():
        return []
    inputs = [path.parent / entry.path for entry in read_lineage(path).inputs]
    return [file for file in inputs if file.name == path.name]
