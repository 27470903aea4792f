"""Ways to plan a case: each gives the `load` of a generated package."""

from __future__ import annotations

import contextlib
import io
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from torch import nn

import tightfit
from tests.battery.case import Case
from tests.battery.outcome import Load
from tests.stages.generate.plans import generated, recompute
from tightfit.api.plan_result import ChosenPlan
from tightfit.stages.trace.trace import trace
from tightfit.stages.validate.validate import check_planned_module
from tightfit.util.errors import ConfigError, ModelError


@dataclass(frozen=True)
class Strategy:
    """A way to plan; `fast` ones are among the tests."""

    name: str
    plan: Callable[[Case, Path], Load]
    fast: bool = False


def planned_at_random(case: Case, folder: Path, seed: int, share: float, in_place: bool) -> Load:
    """Forgets a share of what was computed and computes it again, at random: a plan without costs,
    checked as the one call does."""
    built = case.built()
    with case.around():
        graph = trace(built, case.name, case.device)
        executions = recompute(graph, seed, share) if share else None
        place = Path(tempfile.mkdtemp(dir=folder))
        load: Load = generated(graph, place / "module", executions, in_place).load
        said = check_planned_module(graph, built, load(case.make(planned=True)))
    if said:
        raise ModelError(said)
    return load


def _random(seed: int, share: float, in_place: bool) -> Callable[[Case, Path], Load]:
    return lambda case, folder: planned_at_random(case, folder, seed, share, in_place)


def call_plan(
    case: Case, store: Path, budget: str, strategy: str = "auto", **options: Any
) -> tuple[Load, ChosenPlan]:
    """What the one call makes of a case: the `load` of its package, and the plan."""
    built = case.built()
    args, kwargs = built.samples[0]
    solver = tightfit.SolverOptions(peak_levels=2, save_levels=2, jobs=1)
    with contextlib.redirect_stdout(io.StringIO()), case.around():
        module, plan = tightfit.plan(
            built.model, args, kwargs, budget=budget, strategy=strategy, loss=built.loss,
            solver=solver, store=store, **options,
        )  # fmt: skip
    reduced: Any = module.__reduce_ex__(4)
    again, (place, digest, files, _, otherwise) = reduced
    return lambda model: cast(nn.Module, again(place, digest, files, model, otherwise)), plan


def _called(strategy: str, *budgets: str) -> Callable[[Case, Path], Load]:
    """The one call; the first of the budgets that is not too small."""

    def plan(case: Case, folder: Path) -> Load:
        *first, last = budgets
        for budget in first:
            with contextlib.suppress(ConfigError):
                return call_plan(case, folder / "store", budget, strategy)[0]
        return call_plan(case, folder / "store", last, strategy)[0]

    return plan


STRATEGIES = (
    Strategy("keep", _random(0, 0.0, False)),
    Strategy("recompute", _random(1, 0.7, True), fast=True),
    Strategy("checkpoint_all", _called("checkpoint_all", "none")),
    Strategy("auto", _called("auto", "50%", "80%", "100%")),
    Strategy("rotor", _called("rotor", "60%", "80%", "100%")),
    Strategy("rockmate", _called("rockmate", "40%", "60%", "80%", "100%")),
)
