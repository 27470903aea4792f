"""`select` from a strategy's own plans, and what it goes on to where these lead to none."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.stages.audit.towers import solve_tower, stage
from tightfit.__main__ import main
from tightfit.schemas.frontier import read_frontier
from tightfit.schemas.plan import Plan, read_plan, write_plan
from tightfit.stages.combine.frontier_files import FrontierFiles
from tightfit.stages.combine.select_task import FAR_GAP, OUTPUT_FILES

STRATEGY = ("--strategy", "rotor")
LEAST = "1B"


@pytest.fixture(scope="module")
def solved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with the own plans and the whole frontier of a strategy."""
    folder = tmp_path_factory.mktemp("solved")
    solve_tower(folder, folder / "store")
    for name, more in (("candidates", ["--no-local-search"]), ("frontier", [])):
        words = (*STRATEGY, *makings(folder), *more, "--out", folder / f"{name}.arrow")
        stage("combine", *files(folder), *words)
    return folder


def files(folder: Path) -> tuple[object, ...]:
    return ("--graph", folder / "graph.arrow", "--costs", folder / "costs.arrow")


def makings(folder: Path) -> tuple[object, ...]:
    return ("--blocks", folder / "blocks.arrow", "--options", folder / "options.arrow")


def chosen(folder: Path, out: Path, name: str, budget: str, *more: object) -> Plan:
    words = ("--frontier", folder / f"{name}.arrow", "--budget", budget, "--out", out)
    stage("select", *files(folder), *words, *more)
    return read_plan(out / "plan.json")


def same(one: Path, other: Path) -> bool:
    return all((one / name).read_bytes() == (other / name).read_bytes() for name in OUTPUT_FILES)


def test_where_own_plans_lead_to_none_the_whole_frontier_is_made(
    solved: Path, tmp_path: Path
) -> None:
    alone = chosen(solved, tmp_path / "alone", "candidates", LEAST)
    whole = chosen(solved, tmp_path / "whole", "frontier", LEAST)
    further = chosen(solved, tmp_path / "further", "candidates", LEAST, *makings(solved))
    assert alone.smallest_budget and whole.smallest_budget
    assert not alone.feasible and alone.smallest_budget > whole.smallest_budget
    assert further == whole and same(tmp_path / "further", tmp_path / "whole")
    assert further.smallest_budget is not None
    least = chosen(
        solved, tmp_path / "least", "candidates", f"{further.smallest_budget}B", *makings(solved)
    )
    assert least.feasible and least.peak == read_frontier(solved / "frontier.arrow").points[-1].peak


def test_the_smallest_budget_is_that_of_the_whole_frontier(solved: Path, tmp_path: Path) -> None:
    least = chosen(solved, tmp_path / "min", "candidates", "min", *makings(solved))
    frontier = read_frontier(solved / "frontier.arrow")
    assert least.feasible and least.budget == "min"
    assert least.peak == frontier.points[-1].peak == least.budget_bytes
    assert least.budget_total == least.peak + least.baseline.bytes_before_step
    own = chosen(solved, tmp_path / "own", "candidates", "min", *makings(solved), "--no-search")
    assert own.peak == read_frontier(solved / "candidates.arrow").points[-1].peak
    assert own.peak > least.peak and own.feasible


def test_where_they_lead_to_one_it_is_not_made(
    solved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = chosen(solved, tmp_path / "before", "candidates", "90%")
    assert before.gap is not None and before.gap <= FAR_GAP
    monkeypatch.setattr("tightfit.stages.combine.frontier_files.FrontierFiles.frontier", None)
    found = chosen(solved, tmp_path / "found", "candidates", "90%", *makings(solved))
    assert found.feasible and found == before and same(tmp_path / "found", tmp_path / "before")
    keep_all = chosen(solved, tmp_path / "all", "candidates", "none", *makings(solved))
    assert keep_all.feasible
    unsearched = chosen(
        solved, tmp_path / "none", "candidates", LEAST, *makings(solved), "--no-search"
    )
    assert not unsearched.feasible


def test_an_infeasible_plan_is_told_among_many_commands_too(
    solved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for budget, said in (("90%", ""), (LEAST, f"{tmp_path}: infeasible: ")):
        words = ["--frontier", solved / "candidates.arrow", "--budget", budget, "--no-search"]
        words += ["--out", tmp_path, "--error-file", tmp_path / "select.txt"]
        capsys.readouterr()
        assert main([str(word) for word in ("select", *files(solved), *words)]) == 0
        printed = capsys.readouterr().out
        assert printed.startswith(said) and bool(printed) == bool(said)


def test_a_plan_far_from_its_bound_is_compared_with_that_from_the_whole_frontier(
    solved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = chosen(solved, tmp_path / "alone", "candidates", "90%")
    whole = chosen(solved, tmp_path / "whole", "frontier", "90%")
    monkeypatch.setattr("tightfit.stages.combine.select_task.FAR_GAP", -1.0)
    found = chosen(solved, tmp_path / "found", "candidates", "90%", *makings(solved))
    assert alone.time is not None and whole.time is not None
    assert found == (whole if whole.time < alone.time else alone)
    made = FrontierFiles.frontier
    monkeypatch.setattr(
        FrontierFiles, "frontier", lambda self, name, *more: made(self, "keep_all", *more)
    )
    kept = chosen(solved, tmp_path / "kept", "candidates", "90%", *makings(solved))
    assert kept == alone and same(tmp_path / "kept", tmp_path / "alone")


def test_what_a_frontier_is_made_of_is_read_and_recorded(solved: Path, tmp_path: Path) -> None:
    chosen(solved, tmp_path / "plan", "candidates", "90%", *makings(solved))
    record = json.loads((tmp_path / "plan" / "lineage" / "plan.json.json").read_text())
    names = {Path(entry["path"]).name for entry in record["inputs"]}
    assert names == {
        "graph.arrow",
        "costs.arrow",
        "candidates.arrow",
        "blocks.arrow",
        "options.arrow",
    }


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--blocks", "blocks.arrow"), "--blocks and --options together"),
        (("--options", "options.arrow"), "--blocks and --options together"),
        (("--hierarchy", "hierarchy.arrow"), "and with them what else"),
        (("--blocks", "nowhere", "--options", "nowhere"), "nowhere: cannot be read"),
        (("--machine", "machine.json"), "and with them what else"),
        (("--eager-blocks", "blocks.arrow"), "--eager-graph, --eager-costs"),
    ],
)
def test_what_is_not_whole_is_refused(
    solved: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    words: tuple[str, ...],
    said: str,
) -> None:
    given = (
        "--frontier",
        solved / "candidates.arrow",
        "--budget",
        "90%",
        "--out",
        tmp_path / "plan",
    )
    assert main([str(word) for word in ("select", *files(solved), *given, *words)]) == 1
    assert said in capsys.readouterr().err and not (tmp_path / "plan").exists()


def test_samples_share_the_bytes_of_the_one_that_takes_the_most(
    solved: Path, tmp_path: Path
) -> None:
    plain = tmp_path / "keep_all.arrow"
    stage("combine", *files(solved), *makings(solved), "--strategy", "keep_all", "--out", plain)
    stage(
        *("select", *files(solved), "--frontier", plain),
        *("--budget", "none", "--out", tmp_path / "keep_all"),
    )
    own = read_plan(tmp_path / "keep_all/plan.json")
    larger = replace(own, keep_all=replace(own.keep_all, peak=own.keep_all.peak + 1000))
    write_plan(tmp_path / "larger/plan.json", larger)
    both = [tmp_path / name / "plan.json" for name in ("keep_all", "larger")]
    joint = chosen(solved, tmp_path / "joint", "frontier", "50%", "--joint", *both)
    alone = chosen(solved, tmp_path / "alone", "frontier", "50%")
    assert alone.budget_total is not None
    assert joint.budget_total == alone.budget_total + 500 and joint.budget == "50%"
    assert (joint.budget_label, joint.joint_samples) == ("50% joint", 2)
    assert (alone.budget_label, alone.joint_samples) == ("50%", None)
    size = chosen(solved, tmp_path / "size", "frontier", "1MB", "--joint", *both)
    assert size.budget_total == 10**6
    lineage = json.loads((tmp_path / "joint/lineage/plan.json.json").read_text())
    assert sum("plan.json" in name for name in map(str, lineage["inputs"])) == 2


def test_samples_of_other_models_share_no_budget(
    solved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = tmp_path / "keep_all.arrow"
    stage("combine", *files(solved), *makings(solved), "--strategy", "keep_all", "--out", plain)
    words = ["--frontier", plain, "--budget", "none", "--out", tmp_path / "keep_all"]
    stage("select", *files(solved), *words)
    own = read_plan(tmp_path / "keep_all/plan.json")
    fixed = replace(own.baseline, parameters=own.baseline.parameters + 4)
    write_plan(tmp_path / "other/plan.json", replace(own, baseline=fixed))
    both = [tmp_path / name / "plan.json" for name in ("keep_all", "other")]
    words = ["--frontier", plain, "--budget", "50%", "--joint", *both, "--out", tmp_path / "j"]
    assert main([str(word) for word in ("select", *files(solved), *words)]) == 1
    assert "samples of one joint budget are of one model, and" in capsys.readouterr().err


def test_a_number_without_unit_is_refused(solved: Path, tmp_path: Path) -> None:
    words = ["--frontier", solved / "candidates.arrow", "--budget", "50", "--out", tmp_path]
    assert main(["select", *map(str, [*files(solved), *words])]) == 1
    assert not (tmp_path / "plan.json").exists()
