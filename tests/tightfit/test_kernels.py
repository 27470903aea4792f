"""A plan of fused kernels is never slower or larger than one of eager's: else it is that one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import tightfit
import tightfit.kernels as tightfit_kernels
from tests.tightfit.conftest import SETTINGS
from tests.tightfit.test_fused import ROWS, net, step
from tightfit.kernels import Rivals
from tightfit.route import Route
from tightfit.schemas.costs import Cost
from tightfit.schemas.groups import is_group
from tightfit.schemas.plan import Plan
from tightfit.schemas.updates import WholeStep
from tightfit.stages.fuse import compiling
from tightfit.stages.profile import measure
from tightfit.variants import Variant

pytestmark = pytest.mark.usefixtures("loose_bounds", "traced_once")


@pytest.fixture
def paced(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Groups that take so many seconds, and other ops a thousandth, whatever is measured."""
    made = measure.make_cost

    def priced(graph: Any, op: Any, *more: Any) -> Cost:
        seconds = request.param if is_group(op.target) else 1e-3
        return replace(made(graph, op, *more), seconds=seconds)

    monkeypatch.setattr(measure, "make_cost", priced)
    monkeypatch.setattr(compiling, "slower_than_aten", lambda body, device: False)


def planned(store: Path, budget: str) -> tuple[nn.Module, tightfit.ChosenPlan]:
    return tightfit.plan(
        net(), (ROWS,), budget=budget, kernels="fused", store=store, progress=False, **SETTINGS
    )


@pytest.mark.long
@pytest.mark.parametrize("paced", [1.0], indirect=True)
def test_slow_groups_leave_the_plan_to_eagers_kernels(paced: None, tmp_path: Path) -> None:
    fitted, made = planned(tmp_path, "100%")
    assert made.kernels == "eager"
    assert "; with eager's kernels, as fused ones would take" in made.sentence
    assert made.budget_total is not None
    assert made.peak is not None
    assert made.fixed.there_before + made.peak <= made.budget_total
    assert not (made.module / "groups.py").exists()
    assert all(map(torch.equal, step(fitted), step(net())))


@pytest.mark.parametrize("paced", [1e-6], indirect=True)
def test_fast_groups_are_kept_and_eager_is_not_planned(
    paced: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    frontiers = []
    made_of = Variant.with_frontier.__func__  # type: ignore[attr-defined]

    def counted(cls: Any, route: Any, *more: Any) -> Variant:
        frontiers.append(route.kernels)
        found: Variant = made_of(cls, route, *more)
        return found

    monkeypatch.setattr(Variant, "with_frontier", classmethod(counted))
    _, made = planned(tmp_path, "100%")
    assert made.kernels == "fused"
    assert (made.module / "groups.py").exists()
    assert frontiers == ["fused"]


def interrupted(rivals: Rivals, plan: Plan) -> None:
    raise KeyboardInterrupt


@pytest.mark.long
def test_an_interruption_leaves_the_plan_of_fused_kernels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiling, "slower_than_aten", lambda body, device: False)
    monkeypatch.setattr(Rivals, "better", interrupted)
    _, made = planned(tmp_path, "100%")
    assert made.kernels == "fused"
    assert "; not compared with plans of eager's kernels, which was interrupted" in made.sentence
    with pytest.raises(KeyboardInterrupt):
        planned(tmp_path, "1kB")


@pytest.mark.long
def test_the_smallest_budget_is_that_of_either_kernels(tmp_path: Path) -> None:
    def least(kernels: Any) -> int:
        _, made = tightfit.plan(
            net(),
            (ROWS,),
            budget="min",
            kernels=kernels,
            store=tmp_path,
            progress=False,
            **SETTINGS,
        )
        assert made.peak is not None
        return made.peak

    assert least("fused") <= least("eager")


@pytest.mark.long
@pytest.mark.parametrize("paced", [1.0], indirect=True)
def test_an_optimiser_in_the_backward_steps_with_eagers_kernels_where_these_are_faster(
    paced: None, tmp_path: Path
) -> None:
    model, other = net(), net()
    own = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    fitted, made = tightfit.plan(
        model, (ROWS,), budget="100%", kernels="fused", optimizer=own, store=tmp_path,
        progress=False, **SETTINGS,
    )  # fmt: skip
    assert made.kernels == "eager"
    assert "; with eager's kernels, as fused ones would take" in made.sentence
    assert made.optimizer is not None
    eager = torch.optim.SGD(other.parameters(), 0.1, momentum=0.9)
    for module, steps in ((fitted, made.optimizer), (other, eager)):
        for _ in range(2):
            module(ROWS).square().sum().backward()
            steps.step()
            steps.zero_grad()
    made.optimizer.close()  # type: ignore[attr-defined]
    assert all(map(torch.equal, model.parameters(), other.parameters()))


WHOLE = WholeStep("SGD", 10, 1, 0, 1, 1, 7, 7, 7, "disk", 1, 1, 2.0, 0.0, "")


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
    fused: WholeStep | None,
    eager: WholeStep | None,
    kernels: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def planned_whole(route: Any, *more: Any) -> tuple[Any, WholeStep]:
        whole = fused if route.kernels == "fused" else eager
        if whole is None:
            raise tightfit.ConfigError(f"no plan of {route.kernels} kernels fits")
        return SimpleNamespace(kernels=route.kernels, sentence="it fits"), whole

    monkeypatch.setattr(tightfit_kernels, "planned_whole", planned_whole)
    monkeypatch.setattr(Rivals, "is_least", lambda rivals, seconds, total: False)
    monkeypatch.setattr(Rivals, "eager", None)
    route = Route(Path(), "cpu", "auto", ("none", "4", "6"), kernels="fused")
    variant: Any = SimpleNamespace(bytes_of=lambda written: 9)
    rivals = Rivals(route, variant, written)
    updating: Any = None
    if not kernels:
        with pytest.raises(tightfit.ConfigError, match="fused kernels fits; with eager's kernels"):
            rivals.made_whole(updating)
        return
    made, _ = rivals.made_whole(updating)
    assert (made.route.kernels, made.plan.kernels) == (kernels, kernels)
    assert ("with eager's kernels" in made.plan.sentence) == (kernels == "eager")
