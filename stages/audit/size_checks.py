"""Checks what a plan and its measurement say of calls of other sizes than the largest."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from tightfit.schemas.costs import Costs
from tightfit.schemas.dynamic_plan import SmallSizesPlan
from tightfit.schemas.graph.dynamic_inputs import describe_sizes, lie_within
from tightfit.schemas.graph.dynamic_shapes import graph_at
from tightfit.schemas.graph.training_graph import Graph
from tightfit.schemas.measurement import FAILED_STATUS, Measurement
from tightfit.schemas.plan import Plan
from tightfit.schemas.schedule import ScheduleStep
from tightfit.stages.simulate.simulate import simulate


def check_dynamic_plan(
    path: Path,
    plan: Plan,
    graph: Graph,
    costs: Costs,
    steps: Sequence[ScheduleStep],
    second: Sequence[ScheduleStep] = (),
) -> Iterator[str]:
    """What is wrong with the sizes of a plan's file, a sentence each: they are those of its graph,
    and the simulator finds their peaks, none above that at the largest, and the figures of a
    `second` plan for small sizes."""
    said = None if plan.dynamic is None else list(plan.dynamic.dimensions)
    if said != (None if graph.dynamic is None else graph.dynamic.dimensions):
        yield f"{path}: has other dynamic dimensions than graph.arrow"
        return
    if plan.dynamic is None:
        return
    small = plan.dynamic.small
    if (small is None) == bool(second):
        yield f"{path}: a second plan is in either this file or its schedule, and not in both"
        return
    if small is not None:
        yield from _check_small_sizes(path, small, graph, costs, steps, second)
    for one in plan.dynamic.peaks:
        own = second if small is not None and lie_within(one.sizes, small.sizes) else steps
        found, at = (
            simulate(graph_at(graph, one.sizes), costs, own).peak,
            describe_sizes(one.sizes),
        )
        if one.peak != found:
            yield f"{path}: the peak at {at} is {one.peak}, where the simulator finds {found}"
        if plan.peak is not None and one.peak > plan.peak:
            yield f"{path}: the peak at {at} is {one.peak}, above {plan.peak} at the largest sizes"


def _check_small_sizes(
    path: Path,
    small: SmallSizesPlan,
    graph: Graph,
    costs: Costs,
    steps: Sequence[ScheduleStep],
    second: Sequence[ScheduleStep],
) -> Iterator[str]:
    if graph.dynamic is None or small.sizes != graph.dynamic.small_sizes:
        yield f"{path}: has a second plan for other sizes than graph.arrow"
        return
    own = graph_at(graph, small.sizes)
    found, first = simulate(own, costs, second), simulate(own, costs, steps)
    for name, claimed, simulated in (
        ("peak", small.peak, found.peak),
        ("time", small.time, found.seconds),
        ("first_time", small.first_time, first.seconds),
    ):
        if claimed != simulated:
            yield (
                f"{path}: {name} of the second plan is {claimed}, where the simulator finds "
                f"{simulated}"
            )


def check_measured_sizes(path: Path, plan: Plan, found: Measurement) -> Iterator[str]:
    """What is wrong with the sizes of a measurement's file beside its plan, a sentence each."""
    if found.status == FAILED_STATUS or plan.dynamic is None or not plan.feasible:
        return
    predicted = {describe_sizes(one.sizes): one.peak for one in plan.dynamic.peaks}
    measured = {one.describe(): one for one in found.sizes}
    for at, peak in predicted.items():
        if at not in measured:
            yield f"{path}: the plan was not compared at {at}, of which plan.json has a peak"
        elif measured[at].predicted_peak != peak:
            said = measured[at].predicted_peak
            yield f"{path}: predicted_peak at {at} is {said}, in plan.json {peak}"
    for at, one in measured.items():
        if not one.bits_equal or one.measured_peak != one.predicted_peak:
            yield f"{path}: is {found.status}, though the plan is wrong at {at}"
