"""What was measured of a plan, as labels and words."""

from __future__ import annotations

from tightfit.schemas.measurement import STEP_TIMINGS, Measurement
from tightfit.stages.report.formatting import (
    format_count,
    format_duration,
    format_exact_bytes,
    step_memory_facts,
)

Fact = tuple[str, str]
"""A label and what it says."""


def measured_facts(found: Measurement | None, fused: bool) -> list[Fact]:
    """The facts of a measurement, none where there is none; `fused` are those of fused kernels."""
    if found is None:
        return []
    facts: list[Fact] = []
    if found.measured_peak is not None:
        words = format_exact_bytes(found.measured_peak)
        if found.predicted_peak is not None:
            words += f", {_describe_difference(found.measured_peak - found.predicted_peak)}"
        facts.append(("Measured peak", words))
    facts += step_memory_facts(found)
    for name, taken, foretold in (
        ("Allocated, measured", found.allocated_peak, found.predicted_allocated),
        ("Reserved, measured", found.reserved_peak, found.predicted_reserved),
    ):
        if taken is not None:
            known = "" if foretold is None else f", {_describe_difference(taken - foretold)}"
            facts.append((name, format_exact_bytes(taken) + known))
    if found.cuda_context is not None:
        facts.append(
            ("CUDA's context and other processes, measured", format_exact_bytes(found.cuda_context))
        )
    if found.offload_peak is not None and found.predicted_offload_peak is not None:
        beside = _describe_difference(found.offload_peak - found.predicted_offload_peak)
        facts.append(
            (
                f"In the {found.offload_target}, measured",
                f"{format_exact_bytes(found.offload_peak)}, {beside}",
            )
        )
    if found.wait_seconds is not None:
        waits = format_duration(found.predicted_wait_seconds or 0.0)
        words = f"{format_duration(found.wait_seconds)} a step where {waits} was predicted"
        facts.append(("Waiting for transfers, measured", words))
    if found.measured_time is not None and found.original_time is not None:
        planned, original = map(format_duration, (found.measured_time, found.original_time))
        pair = f"{planned} against {original}"
        facts.append(("Measured time", f"{pair} eager"))
    if found.time_ratio is not None:
        words = f"{found.time_ratio:.3f} over {format_count(found.pairs, 'run')} of each"
        low, high = found.time_ratio_first_quartile, found.time_ratio_third_quartile
        if low is not None and high is not None:
            words += f", quartiles {low:.3f} to {high:.3f}"
        if found.timing:
            words += f"; {STEP_TIMINGS[found.timing]}"
        facts.append(("Time ratio", words))
    facts.append(("Same results", _describe_equality(found, fused)))
    if found.plan_seconds is not None:
        facts.append(("Planning took", format_duration(found.plan_seconds)))
    return [fact for fact in facts if fact[1]]


def _describe_difference(extra: int) -> str:
    if extra == 0:
        return "as predicted to the byte"
    return f"{abs(extra):,} bytes {'more' if extra > 0 else 'less'} than predicted"


def _describe_equality(found: Measurement, fused: bool) -> str:
    if found.bits_equal:
        those = " those of the keep-all step with the same kernels" if fused else ""
        return f"outputs, gradients and buffers are equal{those} bit for bit"
    parts = [
        f"{name} {value:.2g}"
        for name, value in (
            ("outputs", found.output_difference),
            ("gradients", found.gradient_difference),
            ("buffers", found.buffer_difference),
        )
        if value is not None
    ]
    if parts:
        return f"largest differences: {', '.join(parts)}"
    return "not compared" if found.measured_peak is not None else ""
