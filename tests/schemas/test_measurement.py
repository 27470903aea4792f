from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tightfit.schemas import store
from tightfit.schemas.measurement import (
    MAX_TIMELINE_POINTS,
    MEASUREMENT,
    Measurement,
    TimelinePoint,
    downsample_timeline,
    read_measurement,
    read_memory_timeline,
    write_measurement,
    write_memory_timeline,
)
from tightfit.util.errors import ArtifactError

MEASURED = Measurement(
    model="gpt2",
    device="cpu",
    strategy="rockmate",
    budget="50%",
    budget_bytes=1000,
    budget_total=1500,
    status="feasible",
    message="",
    gap=0.02,
    predicted_peak=990,
    measured_peak=990,
    original_peak=2000,
    accumulate_peak=900,
    original_accumulate_peak=1800,
    predicted_allocated=None,
    allocated_peak=None,
    predicted_reserved=None,
    reserved_peak=None,
    cuda_context=None,
    predicted_time=0.5,
    measured_time=0.51,
    original_time=0.45,
    time_ratio=1.13,
    time_ratio_first_quartile=1.1,
    time_ratio_third_quartile=1.2,
    pairs=15,
    output_difference=0.0,
    gradient_difference=0.0,
    buffer_difference=0.0,
    bits_equal=True,
    within_budget=True,
    peak_as_predicted=True,
    plan_seconds=12.0,
)


def test_a_measurement_comes_back_as_it_was_written(tmp_path: Path) -> None:
    infinite = replace(MEASURED, gradient_difference=float("inf"), status="failed")
    nothing = replace(MEASURED, measured_peak=None, bits_equal=None, time_ratio=None, pairs=0)
    for measurement in (MEASURED, infinite, nothing):
        write_measurement(tmp_path / "m.arrow", measurement)
        assert read_measurement(tmp_path / "m.arrow") == measurement


def test_several_measurements_in_one_file_are_refused(tmp_path: Path) -> None:
    row = MEASURED.__dict__
    store.write(tmp_path / "m.arrow", MEASUREMENT, [row, row])
    with pytest.raises(ArtifactError, match=r"m\.arrow: holds 2 measurements"):
        read_measurement(tmp_path / "m.arrow")


def test_what_must_be_there_may_not_be_none(tmp_path: Path) -> None:
    broken = replace(MEASURED, pairs=None)  # type: ignore[arg-type]
    with pytest.raises(ArtifactError, match="pairs"):
        write_measurement(tmp_path / "m.arrow", broken)
    assert not (tmp_path / "m.arrow").exists()


def test_lines_come_back_and_time_never_runs_backward(tmp_path: Path) -> None:
    points = [
        TimelinePoint("planned", 0.0, 0),
        TimelinePoint("planned", 0.1, 5),
        TimelinePoint("original", 0.0, 0),
    ]
    write_memory_timeline(tmp_path / "memory_timeline.arrow", points)
    assert read_memory_timeline(tmp_path / "memory_timeline.arrow") == points
    write_memory_timeline(tmp_path / "memory_timeline.arrow", [points[1], points[0]])
    with pytest.raises(ArtifactError, match="planned step goes back"):
        read_memory_timeline(tmp_path / "memory_timeline.arrow")


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.integers(0, 10**9), max_size=200), st.integers(2, 50))
def test_a_thinned_line_keeps_its_peak_its_end_and_its_order(live: list[int], points: int) -> None:
    line = [(float(index), size) for index, size in enumerate(live)]
    kept = downsample_timeline(line, points)
    assert len(kept) <= max(points, 2)
    assert set(kept) <= set(line) and kept == sorted(kept)
    if line:
        assert max(size for _, size in kept) == max(live)
        assert kept[-1] == line[-1]


def test_a_short_line_is_kept_whole() -> None:
    line = [(float(index), index) for index in range(MAX_TIMELINE_POINTS)]
    assert downsample_timeline(line) == line
