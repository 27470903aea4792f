"""What an audit says of plans for a GPU."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.stages.audit.towers import MODEL, stage
from tightfit.schemas import store
from tightfit.schemas.costs import Costs, read_costs, write_costs
from tightfit.stages.audit.plan_checks import PlanFiles, check_plan_files

PLACE = Path("gpu")


def on_gpu(folder: Path) -> None:
    """The graph and the frontier of a run, with costs of a GPU."""
    folder.mkdir()
    for name in ("graph.arrow", "rockmate/frontier.arrow"):
        (folder / Path(name).name).write_bytes(Path(MODEL, name).read_bytes())
    costs = read_costs(f"{MODEL}/costs.arrow")
    device = replace(costs.device, type="cuda", build="2.13")
    write_costs(folder / "costs.arrow", Costs(costs.rows.values(), device))


@pytest.fixture
def chosen(run: Path) -> Path:
    """A plan for half of a GPU."""
    on_gpu(PLACE)
    return choose("100%")


def choose(budget: str) -> Path:
    files = [f"--{kind}={PLACE / kind}.arrow" for kind in ("graph", "costs", "frontier")]
    stage("select", *files, "--budget", budget, "--out", PLACE / "plan")
    return PLACE / "plan" / "plan.json"


def complaints(path: Path) -> list[str]:
    return list(check_plan_files(PlanFiles.of(path, [])))


def rewrite(path: Path, **changes: Any) -> None:
    document = store.read_json(path)
    store.write_json(path, {**document, **changes})


def test_nothing_is_wrong_with_a_plan_for_a_gpu(chosen: Path) -> None:
    assert complaints(chosen) == []
    assert store.read_json(chosen)["status"] != "infeasible"
    assert complaints(choose("1kB")) == []
    assert complaints(choose("none")) == []


@pytest.mark.parametrize(
    "name", ["requested", "allocated", "reserved", "steady_reserved", "workspaces"]
)
def test_figures_that_the_schedule_does_not_take_are_told(chosen: Path, name: str) -> None:
    gpu = store.read_json(chosen)["gpu"]
    rewrite(chosen, gpu={**gpu, name: gpu[name] + 512})
    assert any("of a GPU, where the schedule takes" in said for said in complaints(chosen))


def test_memory_ahead_that_the_schedule_was_not_planned_with_is_told(chosen: Path) -> None:
    """What is reserved is played with it."""
    gpu = store.read_json(chosen)["gpu"]
    rewrite(chosen, gpu={**gpu, "arena": 64 << 20})
    assert any("of a GPU, where the schedule takes" in said for said in complaints(chosen))


def test_a_budget_that_what_is_reserved_exceeds_is_told(chosen: Path) -> None:
    document = store.read_json(chosen)
    less = document["gpu"]["steady_reserved"] - 1
    own = document["budget_bytes"] - (document["budget_total"] - less)
    rewrite(chosen, budget=f"{less}B", budget_total=less, budget_bytes=own)
    assert [said for said in complaints(chosen) if "reserves" in said] == [
        f"{chosen}: reserves {less + 1} bytes, above its {less}"
    ]


def test_a_percentage_is_that_of_reserved_bytes(chosen: Path) -> None:
    gpu = store.read_json(chosen)["gpu"]
    rewrite(chosen, gpu={**gpu, "keep_all": gpu["keep_all"] + 512})
    assert any("the budget 100% is" in said for said in complaints(chosen))


def test_a_plan_that_does_not_say_what_it_takes_of_a_gpu_is_told(chosen: Path) -> None:
    document = store.read_json(chosen)
    del document["gpu"]
    store.write_json(chosen, document)
    assert f"{chosen}: does not say what it takes of the GPU" in complaints(chosen)
