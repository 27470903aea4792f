from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from tightfit.schemas.plan import (
    BaselineBytes,
    CompetingPlan,
    Plan,
    PlanCost,
    TransferTotals,
    read_plan,
    write_plan,
)
from tightfit.util.errors import ArtifactError

PLAN = Plan(
    strategy="rotor",
    budget="50%",
    budget_total=10,
    budget_bytes=8,
    status="feasible",
    message="it fits",
    time=2.0,
    peak=7,
    lower_bound=1.0,
    gap=0.5,
    optimal_in="",
    smallest_budget=5,
    before_local_search=PlanCost(2.0, 8),
    keep_all=PlanCost(1.0, 12),
    baseline=BaselineBytes(1, 1, 0, 1, 1),
    recomputed=1,
    recomputed_time=1.0,
    solver="local search",
)


def test_a_plan_is_what_was_written(tmp_path: Path) -> None:
    write_plan(tmp_path / "plan.json", PLAN)
    assert read_plan(tmp_path / "plan.json") == PLAN
    assert "transfers" not in json.loads((tmp_path / "plan.json").read_text())


def test_a_plan_with_transfers_is_what_was_written(tmp_path: Path) -> None:
    moved = replace(PLAN, transfers=TransferTotals(3, 3, 2, 0.5))
    write_plan(tmp_path / "plan.json", moved)
    assert read_plan(tmp_path / "plan.json") == moved


def test_a_plan_says_its_kernels_and_those_of_its_rival(tmp_path: Path) -> None:
    rival = CompetingPlan("eager", 3.0, 8, 5, 13)
    fused = replace(PLAN, kernels="fused", groups=4, compiled=2, competing_plan=rival)
    write_plan(tmp_path / "plan.json", fused)
    assert read_plan(tmp_path / "plan.json") == fused
    assert fused.full_budget_bytes == fused.keep_all_total
    assert replace(fused, competing_plan=replace(rival, kernels="fused")).full_budget_bytes == 13


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("kernels", "fast"),
        ("groups", "4"),
        ("compiled", 0.5),
        ("competing_plan", {"kernels": "eager"}),
        ("competing_plan", {**asdict(CompetingPlan("eager", 3.0, 8, 5, 13)), "kernels": None}),
        ("competing_plan", {**asdict(CompetingPlan("eager", 3.0, 8, 5, 13)), "peak": 0.5}),
        ("peak", 10**400),
        ("peak", "7"),
        ("budget_total", True),
        ("status", "timeout"),
        ("strategy", 3),
        ("baseline", {}),
        ("keep_all", None),
        ("transfers", {"offloaded_bytes": 1}),
        ("transfers", [1, 1, 1, 0.5]),
        (
            "transfers",
            {"offloaded_bytes": 1, "prefetched_bytes": 1, "host_peak": "1", "wait_seconds": 0.5},
        ),
    ],
)
def test_a_plan_of_another_form_is_refused(key: str, value: Any, tmp_path: Path) -> None:
    write_plan(tmp_path / "plan.json", PLAN)
    document = json.loads((tmp_path / "plan.json").read_text())
    (tmp_path / "plan.json").write_text(json.dumps({**document, key: value}))
    with pytest.raises(ArtifactError, match=r"plan\.json") as caught:
        read_plan(tmp_path / "plan.json")
    assert "\n" not in str(caught.value)
