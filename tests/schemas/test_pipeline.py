"""`tightfit.pipeline/3` and what was measured of one: round trips, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tightfit.schemas.pipeline import (
    PipelineSchedule,
    PipelineStage,
    PipelineTransfer,
    RankAction,
    SharedGradient,
    is_pipeline,
    read_pipeline,
    write_pipeline,
)
from tightfit.schemas.pipeline_measurement import (
    MeasuredRank,
    PipelineMeasurement,
    TimedAction,
    read_pipeline_measurement,
    write_pipeline_measurement,
)
from tightfit.schemas.pipeline_plan import (
    PipelinePlan,
    PlannedDevice,
    PlannedStage,
    read_pipeline_plan,
    write_pipeline_plan,
)
from tightfit.util.errors import ArtifactError

PIPELINE = PipelineSchedule(
    model="model",
    graph="0" * 64,
    devices=["cpu:0", "cpu:1"],
    memory=[100, 100],
    microbatches=2,
    stages=[PipelineStage(1, 0, 1, 2, True, "1" * 64), PipelineStage(2, 1, 3, 4, False)],
    parcels=[PipelineTransfer(7, (1, "forward"), [(2, "forward"), (1, "sum")], 8)],
    shared=[SharedGradient(3, 1, [9, 8], [0, 1])],
    actions=[
        [RankAction("forward", 1, 0, live=3, peak=4), RankAction("send", 0, 0, 1)],
        [RankAction("receive", 0, 0, 0), RankAction("backward", 2, 1), RankAction("share", 0, 0)],
    ],
    fixed=[1, 2],
    peaks=[4, 5],
)


def test_a_pipeline_comes_back(tmp_path: Path) -> None:
    assert not is_pipeline(tmp_path)
    write_pipeline(tmp_path / "pipeline.json", PIPELINE)
    assert is_pipeline(tmp_path)
    assert read_pipeline(tmp_path / "pipeline.json") == PIPELINE
    assert PIPELINE.words(0) == ["0F0"] and PIPELINE.words(1) == ["1B1"]


def test_a_pipeline_of_nothing_comes_back(tmp_path: Path) -> None:
    """An infeasible plan has one."""
    nothing = PipelineSchedule("model", "0" * 64, [], [], 2, [], [], [], [])
    write_pipeline(tmp_path / "pipeline.json", nothing)
    assert read_pipeline(tmp_path / "pipeline.json") == nothing
    assert PIPELINE.feasible and not nothing.feasible


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"microbatches": 0}, "0 microbatches are none or too many"),
        ({"microbatches": True}, "the number of microbatches is no number"),
        ({"actions": [[]]}, "not every rank has its actions"),
        ({"peaks": [1]}, "not every rank has its bytes"),
        ({"stages": [PipelineStage(1, 2, 1, 2, True)]}, "stage 1 is out of its place"),
        (
            {"stages": [PipelineStage(1, 0, 1, 2, True, 7)]},  # type: ignore[arg-type]
            "stage 1 names no schedule",
        ),
        ({"parcels": [PipelineTransfer(7, (3, "forward"), [], 8)]}, "parcel 0 is amiss"),
        ({"actions": [[RankAction("forward", 3, 0)], []]}, "action 0 of rank 0 names what"),
        ({"actions": [[RankAction("send", 0, 2, 1)], []]}, "action 0 of rank 0 names what"),
        ({"actions": [[RankAction("paint", 1, 0)], []]}, "action 0 of rank 0 names what"),  # type: ignore[arg-type]
        ({"actions": [[RankAction("forward", 1, 0, peak=2**70)], []]}, "action 0 of rank 0"),
        ({"stages": []}, "there is no stage"),
        ({"devices": [1, 2]}, "a name is no text"),
        ({"memory": 7}, "a list is something else"),
        ({"shared": [SharedGradient(3, 5, [9, 8], [0, 1])]}, "shared gradient 0 is amiss"),
        ({"shared": [SharedGradient(3, 1, [9, 8], [0, 2])]}, "shared gradient 0 is amiss"),
    ],
)
def test_a_pipeline_that_is_none(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ArtifactError, match=said):
        write_pipeline(tmp_path / "pipeline.json", replace(PIPELINE, **changes))


def test_other_documents(tmp_path: Path) -> None:
    path = tmp_path / "pipeline.json"
    write_pipeline(path, PIPELINE)
    document = json.loads(path.read_text())
    maker: dict[str, Any] = {"parcels": [{**document["parcels"][0], "maker": [1]}]}
    actions: dict[str, Any] = {"actions": [[["send"]], []]}
    for changed in ({"artifact": "x"}, {"more": 1}, actions, maker, {"stages": 3}):
        path.write_text(json.dumps({**document, **changed}))
        with pytest.raises(ArtifactError, match=r"is no tightfit|does not hold"):
            read_pipeline(path)


def test_a_measurement_comes_back(tmp_path: Path) -> None:
    path = tmp_path / "measurement.json"
    rank = MeasuredRank(
        0, "cpu:0", 1, 100, 5, 5, 0.1, 3, 0.0, 0.0, 0.0, 0.0, "",
        [TimedAction("forward", 1, 0, 0.0, 0.1)],
    )  # fmt: skip
    assert rank.within_budget and not replace(rank, measured_peak=100).within_budget
    measured = PipelineMeasurement("model", "madpipe", "feasible", "Good.", 2, 0.1, [rank])
    write_pipeline_measurement(path, measured)
    assert read_pipeline_measurement(path) == measured
    path.write_text(path.read_text().replace('"ranks"', '"rows"'))
    with pytest.raises(ArtifactError, match="does not hold what a measurement has"):
        read_pipeline_measurement(path)
    for changes in (
        {"seconds": "1"},
        {"rank": 1},
        {"measured_peak": 2**70},
        {"timeline": [TimedAction("forward", 1, 0, 0.0, [])]},  # type: ignore[arg-type]
    ):
        other: Any = replace(rank, **changes)
        write_pipeline_measurement(path, replace(measured, ranks=[other]))
        with pytest.raises(ArtifactError, match="does not hold what a measurement has"):
            read_pipeline_measurement(path)
    path.write_text("{}")
    with pytest.raises(ArtifactError, match="is no tightfit"):
        read_pipeline_measurement(path)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"device": "gpu:7"}, "stage 1 is out of its place or on no device"),
        ({"first": 2}, "stage 1 is out of its place"),
        ({"stage": 2}, "stage 1 is out of its place"),
        ({"last": 1.5}, r"stages\.last is 1\.5"),
        ({"last": 2**70}, r"stages\.last is \d+"),
    ],
)
def test_stages_of_a_plan_that_are_none(tmp_path: Path, changes: Any, said: str) -> None:
    path = tmp_path / "plan.json"
    stage = PlannedStage(1, "cpu:0", 1, 2, 1)
    device = PlannedDevice("cpu:0", 1, 2, 0.5)
    given: Any = {"weight_copies": 2, "buffers": False, "solver": "none", "devices": [device]}
    plan = PipelinePlan("madpipe", "one", "feasible", "Good.", stages=[stage], **given)
    write_pipeline_plan(path, plan)
    assert read_pipeline_plan(path) == plan
    write_pipeline_plan(path, replace(plan, stages=[replace(stage, **changes)]))
    with pytest.raises(ArtifactError, match=said):
        read_pipeline_plan(path)
