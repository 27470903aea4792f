"""Checks the lower bounds of plans: by themselves, and against all other plans of the same step.

A plan of less memory refutes a bound that is above its time, whichever strategy made it: bounds
hold for every plan within a budget.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tightfit.schemas.budget import NO_BUDGET
from tightfit.schemas.errors import TightfitError
from tightfit.schemas.frontier import ROUNDING, read_frontier
from tightfit.schemas.plan import Plan
from tightfit.schemas.schedule import schedule_updates
from tightfit.stages.audit.plan_files import PlanFiles, cached, is_chain


@dataclass(frozen=True)
class _Known:
    """A plan that is known to run: its peak in bytes, its seconds, and the file that has it."""

    peak: int
    seconds: float
    path: Path


def bound_complaints(plans: Sequence[PlanFiles]) -> Iterator[str]:
    """What is wrong with the bounds of plans, a sentence each."""
    steps: dict[tuple[Path | None, Path | None], list[PlanFiles]] = defaultdict(list)
    for files in plans:
        if files.plan.feasible and files.plan.time is not None and not is_chain(files):
            yield from _alone(files.path, files.plan)
            if not _updates(files):
                steps[files.graph, files.costs].append(files)
    for group in steps.values():
        known = [*_plans(group), *_points(group)]
        for files in group:
            yield from _refuted(files, known)


def largest_gap(plans: Sequence[PlanFiles]) -> float | None:
    """The largest gap to its bound of a plan for a budget, None where no plan has one."""
    asked = [files.plan for files in plans if files.plan.budget != NO_BUDGET]
    return max((plan.gap for plan in asked if plan.gap is not None), default=None)


def _alone(path: Path, plan: Plan) -> Iterator[str]:
    if plan.lower_bound is None or plan.gap is None:
        yield f"{path}: says no bound of its time"
    elif plan.time is not None and plan.lower_bound > plan.time * (1 + ROUNDING):
        yield f"{path}: its time of {plan.time} s is below its lower bound, {plan.lower_bound} s"
    elif plan.verdict == "optimal" and plan.gap > ROUNDING:
        yield f"{path}: is optimal, and {plan.gap} of its time is above its lower bound"


def _refuted(files: PlanFiles, known: Sequence[_Known]) -> Iterator[str]:
    """A plan that no budget of this one's keeps out, and that is faster than its bound allows."""
    plan = files.plan
    within = plan.peak if plan.budget_bytes is None else plan.budget_bytes
    if within is None or plan.lower_bound is None:
        return
    for other in known:
        if other.peak <= within and other.seconds * (1 + ROUNDING) < plan.lower_bound:
            yield (
                f"{files.path}: its lower bound is {plan.lower_bound} s, where a plan of "
                f"{other.peak} bytes in {other.path.parent.name}/{other.path.name} takes "
                f"{other.seconds} s"
            )
            return


def _plans(group: Sequence[PlanFiles]) -> Iterator[_Known]:
    for files in group:
        if files.plan.peak is not None and files.plan.time is not None and _no_link(files.plan):
            yield _Known(files.plan.peak, files.plan.time, files.path)


def _points(group: Sequence[PlanFiles]) -> Iterator[_Known]:
    """The points of frontiers; one that cannot be read is told elsewhere."""
    for path in sorted({files.frontier for files in group if files.frontier is not None}):
        try:
            frontier = cached(read_frontier, path)
        except TightfitError:
            continue
        for point in frontier.points:
            if not point.transfers:
                yield _Known(point.peak, point.seconds, path)


def _no_link(plan: Plan) -> bool:
    """Whether nothing is sent: bounds of plans without a link hold for such plans alone."""
    return plan.transfers is None


def _updates(files: PlanFiles) -> bool:
    """Whether a step has updates of its optimiser, whose time others lack."""
    try:
        return files.schedule is not None and schedule_updates(files.schedule) is not None
    except TightfitError:
        return True
