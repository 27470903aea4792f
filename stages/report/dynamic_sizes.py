"""What is said of sizes that differ from call to call."""

from __future__ import annotations

from tightfit.schemas.dynamic_plan import SizeMeasurement
from tightfit.schemas.graph.dynamic_inputs import DimensionLimits, describe_sizes
from tightfit.schemas.plan import Plan
from tightfit.stages.report.formatting import format_count, format_exact_bytes
from tightfit.stages.report.load import PlanResult
from tightfit.stages.report.measured_facts import Fact
from tightfit.util.command_line import format_duration


def describe_largest(dynamic: DimensionLimits | None) -> str:
    """What bytes and times on a page are those of, "" where all calls have the same sizes."""
    if dynamic is None:
        return ""
    return (
        f"Calls have {dynamic.describe()}. Bytes and times are those of the largest sizes, "
        f"{describe_sizes(dynamic.largest)}: no other call takes more."
    )


def size_facts(result: PlanResult) -> list[Fact]:
    """The peaks of a plan at other sizes, measured or predicted, and whether bits are equal."""
    dynamic, found = result.plan.dynamic, result.measurement
    if dynamic is None:
        return []
    facts = [("Sizes of calls", dynamic.describe())]
    if dynamic.small is not None:
        small, own = dynamic.small, format_exact_bytes(dynamic.small.peak)
        first = f"{format_duration(small.first_time)} with the first plan"
        said = f"{own}, {format_duration(small.time)} predicted at most, {first}"
        facts.append((f"Second plan for {dynamic.describe_small()}", said))
    if found is not None and found.sizes:
        return [*facts, *((f"At {one.describe()}", _describe_measured(one)) for one in found.sizes)]
    predicted = [
        (f"At {describe_sizes(one.sizes)}", f"{format_exact_bytes(one.peak)} predicted")
        for one in dynamic.peaks
    ]
    return [*facts, *predicted]


def _describe_measured(one: SizeMeasurement) -> str:
    bits = "the same bits" if one.bits_equal else "not the same bits"
    if one.measured_peak is None:
        return bits
    peak = format_exact_bytes(one.measured_peak)
    if one.predicted_peak is None:
        return f"{peak}, {bits}"
    if one.measured_peak == one.predicted_peak:
        return f"{peak}, as predicted to the byte, {bits}"
    return f"{peak} where {one.predicted_peak:,} were predicted, {bits}"


def size_note(plan: Plan, validated: int | None) -> str:
    """What a table says of a plan's sizes below it: its ranges, and at how many sizes it was
    validated, None if it was not; "" where all calls have the same."""
    if plan.dynamic is None:
        return ""
    said = f"{plan.dynamic.describe()}, bytes are those of the largest"
    if plan.dynamic.small is not None:
        small = plan.dynamic.small
        times = f"{format_duration(small.time)} instead of {format_duration(small.first_time)}"
        said += f"; a second plan for {plan.dynamic.describe_small()}, predicted {times}"
    return said if validated is None else f"{said}; validated at {format_count(validated, 'size')}"
