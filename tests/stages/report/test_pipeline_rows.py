"""What index and summary say of a pipeline, whatever a run has left of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tightfit.schemas.pipeline import (
    PipelineSchedule,
    PipelineStage,
    RankAction,
    write_pipeline,
)
from tightfit.schemas.pipeline_measurement import (
    MeasuredRank,
    PipelineMeasurement,
    write_pipeline_measurement,
)
from tightfit.schemas.pipeline_pattern import (
    PatternKind,
    PatternOperation,
    PipelinePattern,
    write_pipeline_pattern,
)
from tightfit.schemas.pipeline_plan import (
    PipelinePlan,
    PlannedDevice,
    PlannedStage,
    write_pipeline_plan,
)
from tightfit.schemas.plan_folders import PlanFolder
from tightfit.stages.report.index_page import build_run_index
from tightfit.stages.report.load import NOT_PLANNED_YET, load_run_results
from tightfit.stages.report.plan_readers import plan_row_files, read_plan_rows
from tightfit.stages.report.plan_rows import PlanRow
from tightfit.stages.report.render import render_index
from tightfit.stages.report.summary_command import _summarize_plan_row, print_summary

FOLDER = PlanFolder("gpt2", "pipeline", "madpipe")
NAMES = ["cpu:0", "cpu:1"]
PLAN = PipelinePlan(
    "madpipe", "two", "feasible", "A batch ends every 0.5 s.", period=0.5, gap=0.25,
    devices=[PlannedDevice(name, 70, 100, 0.5) for name in NAMES],
    stages=[PlannedStage(at + 1, name, at + 1, at + 1, 1) for at, name in enumerate(NAMES)],
    weight_copies=2, buffers=False, solver="",
)  # fmt: skip
RANKS = PipelineSchedule(
    "gpt2", "0" * 64, NAMES, [100, 100], 1,
    [PipelineStage(1, 0, 1, 1, False), PipelineStage(2, 1, 2, 2, False)], [], [],
    [[RankAction("forward", 1, 0)], [RankAction("forward", 2, 0)]], [10, 10], [50, 60],
)  # fmt: skip
MEASURED = PipelineMeasurement(
    "gpt2", "madpipe", "feasible", "2 ranks compute what one process does", 1, 0.25,
    [
        MeasuredRank(at, name, 10, 100, peak, peak, 0.5, 3, 0.0, 0.0, 0.0, 0.0, "", [])
        for at, (name, peak) in enumerate(zip(NAMES, RANKS.peaks, strict=True))
    ],
    processors=2,
)  # fmt: skip


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """The folder of a pipeline that was planned."""
    place = FOLDER.path(tmp_path)
    write_pipeline_plan(place / "plan/plan.json", PLAN)
    return place


def row_of(place: Path) -> PlanRow:
    [row] = read_plan_rows(place.parents[2], [FOLDER])
    return row


def fail(folder: Path, stage: str, sentence: str) -> None:
    (folder / "logs").mkdir(parents=True, exist_ok=True)
    (folder / "logs" / f"{stage}.txt").write_text(sentence)


def test_what_was_not_planned_says_why(tmp_path: Path) -> None:
    place = FOLDER.path(tmp_path)
    row = row_of(place)
    assert (row.outcome.word, row.outcome.message, row.status) == (
        "not planned", NOT_PLANNED_YET, ""
    )  # fmt: skip
    for folder, stage in (
        (place.parents[1], "trace"), (place.parent, "chain"), (place, "allocate"),
    ):  # fmt: skip
        fail(folder, stage, f"{stage}: is wrong")
        row = row_of(place)
        assert (row.outcome.word, row.outcome.message) == ("failed", f"{stage}: is wrong")
        assert row.log == folder / "logs" / f"{stage}.txt"
    assert [row.folder for row in read_plan_rows(tmp_path)] == [FOLDER]


def test_the_row_of_what_was_not_planned_names_its_machine(tmp_path: Path) -> None:
    fail(FOLDER.path(tmp_path).parents[1], "trace", "trace: the factory raises")
    [row] = read_plan_rows(tmp_path, [replace(FOLDER, target="three")])
    assert (row.target, row.outcome.word) == ("three", "failed")


def test_a_plan_goes_from_planned_to_measured(place: Path) -> None:
    row = row_of(place)
    assert (row.outcome.word, row.target, row.gap) == ("should fit", "two", 0.25)
    assert row.predicted is None
    write_pipeline(place / "ranks/pipeline.json", RANKS)
    row = row_of(place)
    assert row.predicted == 60 and row.note == "2 ranks, a batch every 500.0 ms as planned; not run"
    write_pipeline_measurement(place / "measurement.json", MEASURED)
    (place / "report.html").touch()
    row = row_of(place)
    assert (row.outcome.word, row.outcome.peak, row.outcome.ratio) == ("fits", 60, 2.0)
    assert row.note.endswith("a step takes 500.0 ms and that of one process 250.0 ms")
    assert row.page == place / "report.html"
    assert [path.name for path in plan_row_files(place.parents[2])] == [
        "plan.json", "pipeline.json", "measurement.json"
    ]  # fmt: skip


def test_the_planned_ratio_is_told_if_ranks_share_processors(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Forward and backward of two stages take 0.2 s each, a send and its return 0.1 s: a step of
    one microbatch takes 1 s, and one process, which recomputes nothing, 0.6 s."""
    rows: list[tuple[str, int, PatternKind]] = [
        (NAMES[0], 1, "forward"), ("cpu:0/cpu:1", 1, "send"), (NAMES[1], 2, "forward"),
        (NAMES[1], 2, "backward"), ("cpu:0/cpu:1", 1, "receive"), (NAMES[0], 1, "backward"),
    ]  # fmt: skip
    operations = [
        PatternOperation(
            device, stage, kind, 0.2 * at, 0.1 if kind in ("send", "receive") else 0.2, 0
        )
        for at, (device, stage, kind) in enumerate(rows)
    ]
    write_pipeline_pattern(place / "plan/pattern.arrow", PipelinePattern(2.0, 1, operations))
    again = [replace(stage, recompute_seconds=0.1) for stage in PLAN.stages]
    write_pipeline_plan(place / "plan/plan.json", replace(PLAN, stages=again))
    write_pipeline(place / "ranks/pipeline.json", RANKS)
    row = row_of(place)
    assert row.outcome.ratio == pytest.approx(1 / 0.6) and not row.outcome.as_planned
    planned = "as planned a step takes 1.00 s and that of one process 600.0 ms"
    assert row.note.endswith(f"{planned}; not run")
    write_pipeline_measurement(place / "measurement.json", MEASURED)
    assert row_of(place).outcome.ratio == 2.0
    write_pipeline_measurement(place / "measurement.json", replace(MEASURED, processors=1))
    row = row_of(place)
    assert row.outcome.ratio == pytest.approx(1 / 0.6) and row.outcome.as_planned
    assert f"; {planned}; a step takes 500.0 ms" in row.note
    assert row.note.endswith("does not compare plans, since 2 ranks shared 1 processors")
    print_summary([_summarize_plan_row(row)], place)
    printed = capsys.readouterr().out
    assert " 1.67x* " in printed and "*: as planned" in printed
    results = place.parents[2]
    page = render_index(build_run_index(load_run_results(results), [row]))
    assert "1.67x*" in page and "A time with * is as planned" in page


def test_a_pipeline_that_failed_or_fits_nowhere_is_told(place: Path) -> None:
    write_pipeline(place / "ranks/pipeline.json", RANKS)
    failed = replace(MEASURED, status="failed", message="rank 0 takes more")
    write_pipeline_measurement(place / "measurement.json", failed)
    row = row_of(place)
    assert (row.outcome.word, row.outcome.message) == ("failed", "Failed: rank 0 takes more")
    assert row.status == "failed"
    message = "The chain does not fit."
    nothing = replace(PLAN, status="infeasible", message=message, period=None, stages=[])
    write_pipeline_plan(place / "plan/plan.json", nothing)
    without = PipelineSchedule("gpt2", "", [], [], 1, [], [], [], [])
    write_pipeline(place / "ranks/pipeline.json", without)
    (place / "measurement.json").unlink()
    row = row_of(place)
    assert (row.outcome.word, row.outcome.message, row.gap) == ("infeasible", message, None)
    assert row.status == "infeasible" and row.predicted is None
    fail(place, "split", "split: the disk is full")
    assert row_of(place).outcome.message == "Failed: split: the disk is full"


def test_a_row_of_the_index_leads_to_the_page_of_the_plan(place: Path) -> None:
    results = place.parents[2]
    fail(place.parents[1], "solve", "solve: is for other plans of the model")
    (place / "report.html").touch()
    index = build_run_index(load_run_results(results), read_plan_rows(results))
    assert [(row.strategy, row.word, row.link) for row in index.rows] == [
        ("", "failed", ""),
        ("madpipe", "should fit", "gpt2/pipeline/madpipe/report.html"),
    ]
    assert index.strategies == ["madpipe"] and ("plan", 1) in index.tally
