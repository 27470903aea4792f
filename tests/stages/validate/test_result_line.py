"""What `tightfit validate` prints."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tightfit.schemas.measurement import CPU_APART, Measurement
from tightfit.stages.validate.result_line import describe_measurement

PLAN = "feasible: 119 bytes in all"
MEASURED = Measurement(
    *("gpt2", "cpu", "auto", "50%", 100, 120, "feasible", PLAN, 0.1, 1_000),
    measured_peak=1_000, original_peak=2_000, time_ratio=1.0625, time_ratio_first_quartile=1.0,
    time_ratio_third_quartile=1.1, bits_equal=True, peak_as_predicted=True,
)  # fmt: skip
PEAKS = "peak 1,000 bytes as predicted (the model's own step 2,000)"


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({}, f"{PEAKS}, 1.062 times its time, the same bits"),
        ({"timing": CPU_APART}, f"{PEAKS}, 1.062 times its CPU time, the same bits"),
        ({"time_ratio": None}, f"{PEAKS}, the same bits"),
        (
            {"time_ratio_third_quartile": 9.0, "bits_equal": False},
            f"{PEAKS}, 1.062 times its time (the runs differ widely), not the same bits",
        ),
        (
            {"message": f"{PLAN}; 7 bytes wait on disk"},
            f"{PEAKS}, 1.062 times its time, the same bits; 7 bytes wait on disk",
        ),
        (
            {"original_peak": None, "peak_as_predicted": None, "bits_equal": None},
            "peak 1,000 bytes where 1,000 were predicted, 1.062 times its time, "
            "results not compared",
        ),
        ({"status": "failed", "message": "The step takes 7 bytes."}, "The step takes 7 bytes."),
    ],
)
def test_the_line_has_peaks_time_and_bits(changes: Any, line: str) -> None:
    assert describe_measurement(replace(MEASURED, **changes), PLAN) == line


def test_of_an_infeasible_plan_nothing_is_run() -> None:
    said = "infeasible: 1% is too small"
    found = replace(MEASURED, status="infeasible", message=said, measured_peak=None)
    assert describe_measurement(found, said) == "nothing was run: 1% is too small"
