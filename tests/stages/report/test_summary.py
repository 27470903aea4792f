"""The table of plans, of which some are not there yet."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from tightfit.__main__ import UNFINISHED_ERROR, main
from tightfit.schemas.measurement import read_measurement, write_measurement
from tightfit.schemas.plan import read_plan, write_plan
from tightfit.stages.report.summary_tables import build_console
from tightfit.util.processes import lock_file


def test_a_folder_without_plans_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["summary", str(tmp_path)]) == 0
    assert capsys.readouterr().out == f"{tmp_path} has no plans yet\n"


def test_a_plan_that_a_stage_works_on_is_running_and_has_not_failed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "config.yaml"
    model = {"factory": "nowhere:model", "strategies": ["rotor"], "budgets": ["50%"]}
    config.write_text(yaml.safe_dump({"models": {"a": model}, "results": str(tmp_path)}))
    log = tmp_path / "a/rotor/logs/candidates.txt"
    log.parent.mkdir(parents=True)
    log.write_text(f"combine: {UNFINISHED_ERROR}\n")

    def table() -> str:
        assert main(["summary", "--configuration", str(config)]) == 0
        return capsys.readouterr().out

    with lock_file(log):
        said = table()
    assert "running" in said and "failed" not in said and UNFINISHED_ERROR not in said
    killed = table()
    assert "failed" in killed and UNFINISHED_ERROR in killed and "running" not in killed


@pytest.mark.parametrize(
    ("fail_on", "code"),
    [(None, (0, 1)), ([], (0, 0)), (["infeasible"], (1, 1)), (["failed", "infeasible"], (1, 1))],
)
def test_the_exit_code_is_that_of_the_statuses_that_are_named(
    results: Path, tmp_path: Path, fail_on: list[str] | None, code: tuple[int, int]
) -> None:
    """One plan is infeasible; then the measurement of another contradicts it, too."""
    folder = tmp_path / "results"
    shutil.copytree(results, folder)
    model = {"factory": "nowhere:model", "strategies": ["rockmate"], "budgets": ["50%", "10%"]}
    document = {"models": {"small": model}, "results": str(folder)}
    document |= {} if fail_on is None else {"fail_on": fail_on}
    config = tmp_path / "config.yaml"
    config.write_text(yaml.safe_dump(document))
    assert main(["summary", "--configuration", str(config)]) == code[0]
    measured = folder / "small/rockmate/50pct/measurement.arrow"
    found = replace(read_measurement(measured), status="failed", message="It differs.")
    write_measurement(measured, found)
    assert main(["summary", "--configuration", str(config)]) == code[1]
    assert main(["summary", str(folder)]) == 0


def test_a_joint_budget_that_is_too_small_is_told_with_one_that_fits_all(
    results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "results"
    for number in (1, 2):
        shutil.copytree(results / "small", folder / f"small.{number}")
    path = folder / "small.2/rockmate/10pct/plan.json"
    plan = read_plan(path)
    assert plan.smallest_budget is not None
    write_plan(path, replace(plan, smallest_budget=plan.smallest_budget + 8))
    samples = {"samples": [{"width": 1}, {"width": 2}], "joint": True}
    plans = {"strategies": ["rockmate"], "budgets": ["50%", "10%"]}
    model = {"factory": "nowhere:model", **plans, **samples}
    config = tmp_path / "config.yaml"
    config.write_text(yaml.safe_dump({"models": {"small": model}, "results": str(folder)}))
    capsys.readouterr()
    main(["summary", "--configuration", str(config)])
    lines = capsys.readouterr().out.splitlines()
    [told] = [line for line in lines if "joint" in line]
    assert told == (
        "small.1 rockmate 10%, small.2 rockmate 10%: The joint budget of small.1 and small.2 "
        f"(10%, {plan.budget_total:,} bytes) does not fit all of them: the smallest joint budget "
        f"known to work is {plan.smallest_budget + 8:,} bytes."
    )


def test_a_table_that_nobody_reads_is_a_closed_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with contextlib.suppress(BrokenPipeError), os.fdopen(writer, "w") as output:
        monkeypatch.setattr(sys, "stdout", output)
        with pytest.raises(BrokenPipeError):
            build_console().print("a table")
