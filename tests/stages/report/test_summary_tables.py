"""The tables of a run in the terminal."""

from __future__ import annotations

import argparse
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from tests.stages.report.pages import page_of
from tightfit.schemas.measurement import (
    CPU_IN_TURNS,
    STEP_TIMINGS,
    read_measurement,
    write_measurement,
)
from tightfit.schemas.plan import GpuMemory, TransferTotals, read_plan, write_plan
from tightfit.stages.report import summary_command
from tightfit.stages.report.index_page import build_run_index
from tightfit.stages.report.load import load_model_results
from tightfit.stages.report.measured_facts import measured_facts
from tightfit.stages.report.model_page import build_model_page
from tightfit.stages.report.render import render_index, render_model


def test_the_table_tells_the_gap_of_each_plan(
    results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(results / "small", tmp_path / "small")
    path = tmp_path / "small" / "rockmate" / "50pct" / "plan.json"
    write_plan(path, replace(read_plan(path), gap=0.4321))
    summary_command.run(argparse.Namespace(results=tmp_path, configuration=None))
    told = capsys.readouterr().out.splitlines()
    assert any(" gap " in line for line in told)
    [row] = [line for line in told if "rockmate" in line and " 50% " in line]
    assert " 43.2% " in row


def test_times_of_runs_that_differ_widely_are_marked(
    results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(results / "small", tmp_path / "small")
    plans = argparse.Namespace(results=tmp_path, configuration=None)
    path = tmp_path / "small" / "rockmate" / "50pct" / "measurement.arrow"
    for high, marked in ((1.4, False), (5.8, True)):
        write_measurement(path, replace(read_measurement(path), time_ratio_third_quartile=high))
        summary_command.run(plans)
        told = capsys.readouterr().out
        assert ("1.20x?" in told) == marked and ("measure again while" in told) == marked
        model = load_model_results(tmp_path / "small")
        index, page = render_index(build_run_index([model])), render_model(build_model_page(model))
        assert ("1.20x?" in index) == marked and ("measure again while" in index) == marked
        assert page.count("1.20x?") == 4 * marked and ("runs that differ" in page) == marked


def test_the_table_and_the_page_say_how_times_were_measured(
    results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(results / "small", tmp_path / "small")
    path = tmp_path / "small/rockmate/50pct/measurement.arrow"
    found = replace(read_measurement(path), timing=CPU_IN_TURNS)
    write_measurement(path, found)
    summary_command.run(argparse.Namespace(results=tmp_path, configuration=None))
    said = STEP_TIMINGS[CPU_IN_TURNS]
    assert f"time: {said}\n" in capsys.readouterr().out
    assert dict(measured_facts(found, False))["Time ratio"].endswith(f"; {said}")


def test_what_plans_take_of_a_gpu_is_a_table_of_its_own(
    results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(results / "small", tmp_path / "small")
    plans = argparse.Namespace(results=tmp_path, configuration=None)
    summary_command.run(plans)
    assert "Of the GPU in all" not in capsys.readouterr().out
    place = tmp_path / "small" / "rockmate" / "50pct"
    gpu = GpuMemory(8_000_001, 8_100_000, 8_300_000, 10_000_000, 0, 9_000_000, 2_097_152)
    write_plan(place / "plan.json", replace(read_plan(place / "plan.json"), gpu=gpu))
    measured = read_measurement(place / "measurement.arrow")
    taken = {"allocated_peak": 8_200_000, "reserved_peak": 8_400_000, "cuda_context": 300_000_000}
    write_measurement(place / "measurement.arrow", replace(measured, **taken))  # type: ignore[arg-type]
    summary_command.run(plans)
    told = capsys.readouterr().out
    table = told[told.index("Of the GPU in all") :]
    for said in ("8.0 MB", "8.1 MB, measured 8.2 MB", "8.3 MB, measured 8.4 MB"):
        assert said in table
    for said in ("10.0 MB", "2.1 MB", "300.0 MB"):
        assert said in table


def test_what_plans_send_is_a_table_of_its_own(
    results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(results / "small", tmp_path / "small")
    plans = argparse.Namespace(results=tmp_path, configuration=None)
    place = tmp_path / "small" / "rockmate" / "50pct"
    sent = TransferTotals(5_000_000, 5_000_000, 3_000_000, 0.004)
    write_plan(place / "plan.json", replace(read_plan(place / "plan.json"), transfers=sent))
    measured = read_measurement(place / "measurement.arrow")
    more = {
        "offload_target": "disk",
        "predicted_offload_peak": 3_000_000,
        "offload_peak": 3_000_000,
    }
    waits = {"predicted_wait_seconds": 0.004, "wait_seconds": 0.006}
    write_measurement(place / "measurement.arrow", replace(measured, **more, **waits))  # type: ignore[arg-type]
    summary_command.run(plans)
    told = capsys.readouterr().out
    table = told[told.index("Transfers to an offload target, predicted and measured") :]
    assert table.count("3.0 MB") == 2 and "4.0 ms" in table and "6.0 ms" in table
    html = page_of(tmp_path / "small")[0]
    for said in (
        "3,000,000 bytes at most, 5.0 MB leave in a step, waited for 4.0 ms",
        "3,000,000 bytes, as predicted to the byte",
        "6.0 ms a step where 4.0 ms was predicted",
    ):
        assert said in html
