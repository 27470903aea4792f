"""Patterns and plans of pipelines: written, read, refused."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tightfit.schemas import store
from tightfit.schemas.pipeline_pattern import (
    NO_PATTERN,
    PIPELINE_PATTERN,
    PatternOperation,
    PipelinePattern,
    read_pipeline_pattern,
    write_pipeline_pattern,
)
from tightfit.schemas.pipeline_plan import (
    PipelinePlan,
    PlannedDevice,
    PlannedStage,
    read_pipeline_plan,
    write_pipeline_plan,
)
from tightfit.util.errors import ArtifactError

ROWS = [
    PatternOperation("cuda:0", 1, "forward", 0.0, 1.0, 0),
    PatternOperation("cuda:0", 1, "backward", 1.5, 2.0, 0),
]
WHOLE = PipelinePattern(4.0, 1, ROWS)


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 5), st.integers(1, 3), st.floats(1e-6, 1e6))
def test_what_is_written_is_read(
    tmp_path_factory: pytest.TempPathFactory, stages: int, batches: int, period: float
) -> None:
    path = tmp_path_factory.mktemp("pattern") / "pattern.arrow"
    rows = [
        PatternOperation(f"cuda:{stage}", stage, kind, period / 3, period / 7, turn - stage)
        for stage in range(1, stages + 1)
        for turn in range(batches)
        for kind in ("forward", "backward", "send", "receive")
    ]  # fmt: skip
    write_pipeline_pattern(path, PipelinePattern(period, batches, rows), "c" * 64)
    assert read_pipeline_pattern(path) == PipelinePattern(period, batches, rows)
    assert store.read(path, PIPELINE_PATTERN).metadata["chain"] == "c" * 64


def test_the_fields_are_those_other_programs_read(tmp_path: Path) -> None:
    write_pipeline_pattern(tmp_path / "pattern.arrow", WHOLE)
    artifact = store.read(tmp_path / "pattern.arrow", PIPELINE_PATTERN)
    assert list(artifact.rows[0]) == "device stage operation start duration shift".split()
    assert artifact.metadata == {"period": "4.0", "batches": "1", "chain": ""}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"operation": "copy"}, "row 0 has the unknown operation 'copy'"),
        ({"device": ""}, "row 0 names no device"),
        ({"device": "a\nb"}, "row 0 names no device"),
        ({"stage": 0}, "row 0 has stage 0, expected 1 or more"),
        ({"stage": 1 << 40}, "row 0 has stage 1099511627776"),
        ({"stage": 3}, "stage 2 has no operation"),
        ({"start": 4.0}, "row 0 has start = 4.0, expected from 0 to less than 4.0"),
        ({"start": -0.5}, "row 0 has start = -0.5"),
        ({"start": float("nan")}, "row 0 has start = nan"),
        ({"duration": -1.0}, "row 0 has duration = -1.0, which is negative or not finite"),
        ({"duration": float("inf")}, "row 0 has duration = inf"),
        ({"shift": 1 << 60}, "row 0 has shift = 1152921504606846976, which is out of range"),
    ],
)
def test_a_wrong_row_is_named(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    pattern = replace(WHOLE, operations=[replace(ROWS[0], **changes), ROWS[1]])
    path = tmp_path / "pattern.arrow"
    with pytest.raises(ArtifactError, match=r"pattern\.arrow") as refused:
        write_pipeline_pattern(path, pattern)
    assert words in str(refused.value)
    assert not path.exists()
    rows = [asdict(row) for row in pattern.operations]
    store.write(path, PIPELINE_PATTERN, rows, {"period": "4.0", "batches": "1"})
    with pytest.raises(ArtifactError) as refused:
        read_pipeline_pattern(path)
    assert words in str(refused.value)


@pytest.mark.parametrize(
    ("metadata", "words"),
    [
        ({}, "the metadata has no period or no batches"),
        ({"period": "x", "batches": "1"}, "the metadata has no period or no batches"),
        ({"period": "0.0", "batches": "1"}, "the period is 0.0, expected more than 0"),
        ({"period": "inf", "batches": "1"}, "the period is inf"),
        ({"period": "4.0", "batches": "0"}, "0 batches a period are none or too many"),
    ],
)
def test_wrong_metadata_is_named(tmp_path: Path, metadata: dict[str, str], words: str) -> None:
    path = tmp_path / "pattern.arrow"
    store.write(path, PIPELINE_PATTERN, [asdict(row) for row in ROWS], metadata)
    with pytest.raises(ArtifactError, match=words):
        read_pipeline_pattern(path)


def test_a_pattern_without_operations_is_that_of_no_pipeline(tmp_path: Path) -> None:
    write_pipeline_pattern(tmp_path / "pattern.arrow", NO_PATTERN)
    assert read_pipeline_pattern(tmp_path / "pattern.arrow") == NO_PATTERN
    with pytest.raises(ArtifactError, match="the pattern has no operations"):
        write_pipeline_pattern(tmp_path / "pattern.arrow", replace(WHOLE, operations=[]))


PLAN = PipelinePlan(
    "madpipe",
    "two",
    "feasible",
    "A batch ends every 4 s.",
    period=4.0,
    batches=1,
    batch_periods=2,
    lower_bound=3.0,
    gap=0.25,
    devices=[PlannedDevice("cuda:0", 10, 20, 0.75)],
    stages=[PlannedStage(1, "cuda:0", 1, 3, 1)],
    weight_copies=3,
    buffers=False,
    solver="HiGHS",
)


def test_a_plan_that_is_written_is_read(tmp_path: Path) -> None:
    write_pipeline_plan(tmp_path / "plan.json", PLAN)
    assert read_pipeline_plan(tmp_path / "plan.json") == PLAN


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("period", "fast", "period is 'fast'"),
        ("batches", 1.5, "batches is 1.5"),
        ("batches", True, "batches is True"),
        ("status", "good", "'good' is no status"),
        ("buffers", 1, "buffers is 1, not a truth"),
        ("solver", None, "solver is None"),
        ("weight_copies", "3", "weight_copies is '3'"),
        ("devices", 3, "devices is no list"),
        ("devices", [{"device": "cuda:0"}], "devices does not hold device, peak, memory, busy"),
        (
            "stages",
            [[]],
            "stages does not hold stage, device, first, last, in_flight, recompute_seconds",
        ),
        (
            "stages",
            [
                {
                    "stage": "1",
                    "device": "a",
                    "first": 1,
                    "last": 2,
                    "in_flight": 1,
                    "recompute_seconds": 0.0,
                }
            ],
            "stages.stage is '1'",
        ),
    ],
)
def test_a_wrong_plan_is_told(tmp_path: Path, key: str, value: Any, words: str) -> None:
    path = tmp_path / "plan.json"
    path.write_text(json.dumps({**asdict(PLAN), key: value}))
    with pytest.raises(ArtifactError) as refused:
        read_pipeline_plan(path)
    assert words in str(refused.value)
