"""What steps were found to do, in the words and the fields of a measurement."""

from __future__ import annotations

from dataclasses import replace

from tightfit.schemas.measurement import Measurement
from tightfit.schemas.reference import Reference
from tightfit.stages.replay.allocator import Taken
from tightfit.stages.validate.comparison import Comparison
from tightfit.stages.validate.measure import Times


def is_within(base: Measurement, peak: int, taken: Taken | None) -> bool:
    """Whether a step kept its budget: on CUDA its reserved bytes in all, too."""
    if base.budget_bytes is None:
        return True
    if taken is not None and base.budget_total is not None and taken.reserved > base.budget_total:
        return False
    return peak <= base.budget_bytes


def over_budget(measured: Measurement) -> str:
    """How a step misses its budget."""
    peak, own = measured.measured_peak, measured.budget_bytes
    if peak is not None and own is not None and peak > own:
        return f"the step takes {peak} bytes, over its budget of {own}"
    foretold = measured.predicted_reserved
    said = "" if foretold is None else f", where {foretold} were predicted"
    return (
        f"PyTorch's allocator reserves {measured.reserved_peak} bytes, over the budget of "
        f"{measured.budget_total}{said}"
    )


def with_results(
    base: Measurement, compared: Comparison, times: Times | None, known: Reference | None
) -> Measurement:
    """The measurement with differences, where there was a comparison, and times, beside what was
    `known` of the original."""
    found = base
    if compared.compared:
        difference = compared.difference
        found = replace(
            base,
            output_difference=difference.output,
            gradient_difference=difference.gradient,
            buffer_difference=difference.buffer,
            bits_equal=difference.bits_equal,
        )
    if times is None:
        return found
    lost = max(times.planned.lost, known.lost if known else 0.0)
    found = replace(found, measured_time=times.planned.median, lost=lost)
    if times.unplanned is None or times.ratio is None:
        return found
    return replace(
        found,
        unplanned_time=times.unplanned.median,
        time_ratio=times.ratio.median,
        time_ratio_first_quartile=times.ratio.first_quartile,
        time_ratio_third_quartile=times.ratio.third_quartile,
        pairs=times.ratio.repeats,
    )
