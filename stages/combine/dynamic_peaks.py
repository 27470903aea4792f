"""The peaks of a schedule at other sizes than the largest."""

from __future__ import annotations

from collections.abc import Sequence

from tightfit.schemas.costs import Costs
from tightfit.schemas.dynamic_plan import DynamicPlan, SizePeak, SmallSizesPlan
from tightfit.schemas.graph.dynamic_inputs import describe_sizes, lie_within
from tightfit.schemas.graph.dynamic_shapes import graph_at
from tightfit.schemas.graph.training_graph import Graph
from tightfit.schemas.schedule import ScheduleStep
from tightfit.stages.simulate.simulate import simulate
from tightfit.util.errors import ModelError

SmallSchedule = tuple[SmallSizesPlan, Sequence[ScheduleStep]]
"""A second plan for small sizes, and its schedule."""


def predict_dynamic_peaks(
    graph: Graph,
    costs: Costs,
    steps: Sequence[ScheduleStep] | None,
    peak: int = 0,
    small: SmallSchedule | None = None,
) -> DynamicPlan | None:
    """What a plan says of calls of other sizes; None where all have the same.

    Args:
        graph: The graph at the largest sizes.
        costs: Its costs, with the bytes of its ops at `checked_sizes` where these were measured.
        steps: The schedule, None for none.
        peak: Its bytes at the largest sizes.
        small: A second plan for small sizes with its schedule, None for none.

    Raises:
        ModelError: The schedule takes more bytes at other sizes: operators that need more temporary
            memory there, which storages say nothing of.
    """
    dynamic = graph.dynamic
    if dynamic is None:
        return None
    found: list[SizePeak] = []
    second = None if small is None else small[0]
    if steps is None or costs.device.measured_threads is None:
        return DynamicPlan(list(dynamic.dimensions), found, second)
    for sizes in dynamic.checked_sizes():
        own, most, at = steps, peak, "the largest sizes"
        if small is not None and lie_within(sizes, small[0].sizes):
            own, most, at = small[1], small[0].peak, describe_sizes(small[0].sizes)
        taken = simulate(graph_at(graph, sizes), costs, own).peak
        if taken > most:
            raise ModelError(
                f"{graph.model}: the planned step takes {taken:,} bytes at "
                f"{describe_sizes(sizes)}, and {most:,} at {at}: leave a dimension out of the "
                "dynamic ones, or give it a smaller range"
            )
        found.append(SizePeak(sizes, taken))
    return DynamicPlan(list(dynamic.dimensions), found, second)
