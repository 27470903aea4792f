"""A plan of fused kernels is never slower or larger than one of eager's: else it is that one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import tightfit
from schemas.costs import Cost
from schemas.groups import is_group
from schemas.plan import Plan
from stages.fuse import compiling
from stages.profile import measure
from tests.tightfit.test_fused import ROWS, net, step
from tightfit.kernels import Rivals, _is_better
from tightfit.variants import Variant


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
        net(), (ROWS,), budget=budget, kernels="fused", store=store, progress=False, jobs=1
    )


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


def figures(time: float | None, smallest: int) -> Plan:
    known: Any = dict.fromkeys(("keep_all", "fixed", "solver"))
    verdict: Any = "infeasible" if time is None else "feasible"
    return Plan("auto", "50%", 9, 9, verdict, "", time=time, smallest_budget=smallest, **known)


@pytest.mark.parametrize(
    ("eager", "fused", "better"),
    [
        ((1.0, 5), (2.0, 5), True),
        ((2.0, 5), (1.0, 5), False),
        ((1.0, 5), (1.0, 5), False),
        ((1.0, 5), (None, 9), True),
        ((None, 5), (1.0, 9), False),
        ((None, 5), (None, 9), True),
        ((None, 9), (None, 5), False),
    ],
)
def test_which_kernels_are_better(
    eager: tuple[float | None, int], fused: tuple[float | None, int], better: bool
) -> None:
    assert _is_better(figures(*eager), figures(*fused)) is better


def test_the_smallest_budget_is_that_of_either_kernels(tmp_path: Path) -> None:
    def least(kernels: Any) -> int:
        _, made = tightfit.plan(
            net(), (ROWS,), budget="min", kernels=kernels, store=tmp_path, progress=False, jobs=1
        )
        assert made.peak is not None
        return made.peak

    assert least("fused") <= least("eager")
