"""What a validation found, as one line for people."""

from __future__ import annotations

from tightfit.schemas.measurement import CPU, FAILED_STATUS, Measurement


def describe_measurement(found: Measurement, plan_message: str) -> str:
    """What was measured of a plan, behind its status: peaks in bytes, time relative to the model's
    own step, and whether bits differ.

    Args:
        found: The measurement.
        plan_message: What the plan says of itself, which is not repeated.

    Returns:
        One line, such as "peak 99,392 bytes as predicted (the model's own step 132,160), 1.056
        times its time, the same bits".
    """
    if found.status == FAILED_STATUS:
        return found.message
    if found.measured_peak is None:
        return f"nothing was run: {plan_message.removeprefix(f'{found.status}: ')}"
    more = found.message.removeprefix(plan_message).lstrip("; ")
    parts = (_describe_peaks(found), _describe_time(found), _describe_bits(found))
    return "; ".join(filter(None, (", ".join(filter(None, parts)), more)))


def _describe_peaks(found: Measurement) -> str:
    predicted = found.predicted_peak or 0
    same = "as predicted" if found.peak_as_predicted else f"where {predicted:,} were predicted"
    own = "" if found.original_peak is None else f" (the model's own step {found.original_peak:,})"
    return f"peak {found.measured_peak:,} bytes {same}{own}"


def _describe_time(found: Measurement) -> str:
    if found.time_ratio is None:
        return ""
    scattered = " (the runs differ widely)" if found.scattered else ""
    clock = "CPU time" if found.timing.startswith(CPU) else "time"
    return f"{found.time_ratio:.3f} times its {clock}{scattered}"


def _describe_bits(found: Measurement) -> str:
    if found.bits_equal is None:
        return "results not compared"
    return "the same bits" if found.bits_equal else "not the same bits"
