"""A plan of fused kernels is never slower or larger than one of eager's: else it is that one."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import tightfit
import tightfit.api.kernel_choice as tightfit_kernels
from tests.tightfit.conftest import SETTINGS
from tests.tightfit.test_fused_kernels import ROWS, net, step
from tightfit import FusedKernelOptions
from tightfit.api.input_specialization import InputSpecialization
from tightfit.api.kernel_choice import KernelChoice
from tightfit.api.stage_runner import StageRunner
from tightfit.schemas.costs import OpCost
from tightfit.schemas.graph.fused_groups import is_fused_group
from tightfit.schemas.optimizer_plan import OptimizerStepPrediction
from tightfit.schemas.plan import Plan
from tightfit.stages.fuse import compile_groups
from tightfit.stages.profile import measure

pytestmark = pytest.mark.usefixtures("loose_bounds", "traced_once")


@pytest.fixture
def paced(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Groups that take so many seconds, and other ops a thousandth, whatever is measured."""
    made = measure.make_cost

    def priced(graph: Any, op: Any, *more: Any) -> OpCost:
        seconds = request.param if is_fused_group(op.target) else 1e-3
        return replace(made(graph, op, *more), seconds=seconds)

    monkeypatch.setattr(measure, "make_cost", priced)
    monkeypatch.setattr(compile_groups, "is_slower_than_aten", lambda body, device: False)


FUSED = FusedKernelOptions()


def planned(store: Path, budget: str) -> tuple[nn.Module, tightfit.ChosenPlan]:
    return tightfit.plan(
        net(),
        (ROWS,),
        budget=budget,
        fused_kernels=FUSED,
        store=store,
        progress=False,
        **SETTINGS,
    )


@pytest.mark.long
@pytest.mark.parametrize("paced", [1.0], indirect=True)
def test_slow_groups_leave_the_plan_to_eagers_kernels(paced: None, tmp_path: Path) -> None:
    fitted, made = planned(tmp_path, "100%")
    assert made.kernels == "eager"
    assert "; with eager's kernels, as fused ones would take" in made.message
    assert made.budget_total is not None
    assert made.peak is not None
    assert made.baseline.bytes_before_step + made.peak <= made.budget_total
    assert not (made.package / "groups.py").exists()
    assert all(map(torch.equal, step(fitted), step(net())))


@pytest.mark.parametrize("paced", [1e-6], indirect=True)
def test_fast_groups_are_kept_and_eager_is_not_planned(
    paced: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    frontiers = []
    made_of = InputSpecialization.with_frontier.__func__  # type: ignore[attr-defined]

    def counted(cls: Any, route: Any, *more: Any) -> InputSpecialization:
        frontiers.append(route.fused_kernels)
        found: InputSpecialization = made_of(cls, route, *more)
        return found

    monkeypatch.setattr(InputSpecialization, "with_frontier", classmethod(counted))
    _, made = planned(tmp_path, "100%")
    assert made.kernels == "fused"
    assert (made.package / "groups.py").exists()
    assert frontiers == [FusedKernelOptions()]


def interrupted(rivals: KernelChoice, plan: Plan) -> None:
    raise KeyboardInterrupt


@pytest.mark.long
def test_an_interruption_leaves_the_plan_of_fused_kernels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compile_groups, "is_slower_than_aten", lambda body, device: False)
    monkeypatch.setattr(KernelChoice, "competing_plan", interrupted)
    _, made = planned(tmp_path, "100%")
    assert made.kernels == "fused"
    assert "; not compared with plans of eager's kernels, which was interrupted" in made.message
    with pytest.raises(KeyboardInterrupt):
        planned(tmp_path, "1kB")


@pytest.mark.long
def test_the_smallest_budget_is_that_of_either_kernels(tmp_path: Path) -> None:
    def least(fused: FusedKernelOptions | None) -> int:
        _, made = tightfit.plan(
            net(),
            (ROWS,),
            budget="min",
            fused_kernels=fused,
            store=tmp_path,
            progress=False,
            **SETTINGS,
        )
        assert made.peak is not None
        return made.peak

    assert least(FusedKernelOptions()) <= least(None)


@pytest.mark.long
@pytest.mark.parametrize("paced", [1.0], indirect=True)
def test_an_optimizer_in_the_backward_steps_with_eagers_kernels_where_these_are_faster(
    paced: None, tmp_path: Path
) -> None:
    model, other = net(), net()
    own = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    fitted, made = tightfit.plan(
        model, (ROWS,), budget="100%", fused_kernels=FUSED, optimizer=own, store=tmp_path,
        progress=False, **SETTINGS,
    )  # fmt: skip
    assert made.kernels == "eager"
    assert "; with eager's kernels, as fused ones would take" in made.message
    assert made.optimizer is not None
    eager = torch.optim.SGD(other.parameters(), 0.1, momentum=0.9)
    for module, steps in ((fitted, made.optimizer), (other, eager)):
        for _ in range(2):
            module(ROWS).square().sum().backward()
            steps.step()
            steps.zero_grad()
    made.optimizer.close()  # type: ignore[attr-defined]
    assert all(map(torch.equal, model.parameters(), other.parameters()))


@dataclass(frozen=True)
class _Planned:
    """A plan of kernels, with its message."""

    kernels: str
    message: str = "it fits"

    def with_note(self, note: str) -> _Planned:
        return replace(self, message=f"{self.message}; {note}")


WHOLE = OptimizerStepPrediction("SGD", 10, 1, 0, 1, 1, 7, 7, 7, "disk", 1, 1, 2.0, 0.0, "")


@pytest.mark.parametrize(
    ("written", "fused", "eager", "kernels"),
    [
        ("50%", WHOLE, replace(WHOLE, seconds=1.0), "eager"),
        ("50%", WHOLE, WHOLE, "fused"),
        ("9MB", WHOLE, replace(WHOLE, seconds=3.0), "fused"),
        ("9MB", None, WHOLE, "eager"),
        ("9MB", WHOLE, None, "fused"),
        ("9MB", None, None, ""),
        ("min", WHOLE, replace(WHOLE, total=9, seconds=3.0), "eager"),
        ("min", WHOLE, replace(WHOLE, total=11, seconds=1.0), "fused"),
        ("none", WHOLE, replace(WHOLE, seconds=1.0), "fused"),
    ],
)
def test_which_kernels_step_in_the_backward(
    written: str,
    fused: OptimizerStepPrediction | None,
    eager: OptimizerStepPrediction | None,
    kernels: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def planned_whole(route: Any, *more: Any) -> tuple[Any, OptimizerStepPrediction]:
        kernels = "eager" if route.fused_kernels is None else "fused"
        whole = eager if route.fused_kernels is None else fused
        if whole is None:
            raise tightfit.ConfigError(f"no plan of {kernels} kernels fits")
        return _Planned(kernels), whole

    monkeypatch.setattr(tightfit_kernels, "plan_optimizer_step", planned_whole)
    monkeypatch.setattr(KernelChoice, "is_unbeatable", lambda rivals, seconds, total: False)
    monkeypatch.setattr(KernelChoice, "eager", None)
    route = StageRunner(Path(), "cpu", "auto", fused_kernels=FusedKernelOptions())
    variant: Any = SimpleNamespace(bytes_of=lambda written: 9)
    rivals = KernelChoice(route, variant, written)
    updating: Any = None
    if not kernels:
        with pytest.raises(tightfit.ConfigError, match="fused kernels fits; with eager's kernels"):
            rivals.plan_with_optimizer(updating)
        return
    made, _ = rivals.plan_with_optimizer(updating)
    assert (made.runner.fused_kernels is not None) == (kernels == "fused")
    assert made.plan.kernels == kernels
    assert ("with eager's kernels" in made.plan.message) == (kernels == "eager")
