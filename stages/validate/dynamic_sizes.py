"""Compares a plan with dynamic shapes with its model at other sizes than the largest."""

from __future__ import annotations

from dataclasses import replace

from torch import nn

from tightfit.schemas.dynamic_plan import DynamicPlan, SizeMeasurement
from tightfit.schemas.graph.dynamic_inputs import describe_sizes
from tightfit.schemas.graph.dynamic_shapes import graph_at, graph_dynamic_inputs
from tightfit.schemas.graph.training_graph import Graph
from tightfit.schemas.measurement import FAILED_STATUS, Measurement
from tightfit.stages.torch_utils.devices import device_of_tensors, enter_device
from tightfit.stages.torch_utils.model_factory import BuiltModel, all_tensors
from tightfit.stages.torch_utils.sample_sizes import resize_samples
from tightfit.stages.validate.comparison import SEED, copy_model, freeze_garbage_collector
from tightfit.stages.validate.measure import measure_memory
from tightfit.stages.validate.scenarios import seed_host_random
from tightfit.stages.validate.training_step import StepRunner, detach_sample
from tightfit.stages.validate.validate import check_planned_module
from tightfit.util.progress import ProgressCallback

_QUICK_SIZES = 2
"""So many sizes, the smallest first, are compared in a quick check, and those of a second plan."""


def compare_sizes(
    graph: Graph,
    built: BuiltModel,
    planned: nn.Module,
    predicted: DynamicPlan | None,
    report: ProgressCallback | None = None,
    full: bool = True,
) -> tuple[list[SizeMeasurement], str]:
    """Compares a planned module with its original at the smallest sizes and at sizes between, as
    `check_planned_module` does at the largest, and on the CPU its peaks with those `predicted`.

    Unless `full` it does so at the smallest, at one between and at the largest sizes of a second
    plan. Returns what was found up to the
    first fault, and that fault in a sentence, "" for none."""
    assert graph.dynamic is not None
    measured: list[SizeMeasurement] = []
    peaks = {} if predicted is None else {describe_sizes(o.sizes): o.peak for o in predicted.peaks}
    checked = graph.dynamic.checked_sizes()
    quick = [*checked[:_QUICK_SIZES], dict(graph.dynamic.small_sizes)]
    for sizes in checked if full else [each for each in checked if each in quick]:
        own, resized = graph_at(graph, sizes), resize_samples(built, sizes)
        said = check_planned_module(own, resized, planned, report, full)
        foretold = peaks.get(describe_sizes(sizes))
        taken = None
        if not said and graph.device == "cpu":
            taken = measure_size_peak(own, resized, planned)
            if foretold is not None and taken != foretold:
                said = f"The step takes {taken:,} bytes where {foretold:,} were predicted."
        measured.append(SizeMeasurement(sizes, not said, foretold, taken))
        if said:
            return measured, f"With dynamic sizes, at {describe_sizes(sizes)}: {said}"
    return measured, ""


def measure_size_peak(graph: Graph, built: BuiltModel, planned: nn.Module) -> int:
    """The bytes that a step of a planned module takes, at the sizes of a sample."""
    place = device_of_tensors(all_tensors(built), graph.device)
    with enter_device(place), freeze_garbage_collector(), seed_host_random(SEED):
        runner, sample = StepRunner.of(graph, built), detach_sample(built.samples[0])
        return measure_memory(copy_model(planned), runner, sample, str(place))[0].peak


def with_graph_sizes(built: BuiltModel, graph: Graph) -> BuiltModel:
    """A model as a factory made it, with samples of the largest sizes of a graph."""
    if graph.dynamic is None:
        return built
    return resize_samples(
        replace(built, dynamic=graph_dynamic_inputs(graph)), graph.dynamic.largest
    )


def add_size_measurements(
    measured: Measurement,
    graph: Graph,
    built: BuiltModel,
    planned: nn.Module,
    predicted: DynamicPlan | None,
    report: ProgressCallback | None = None,
) -> Measurement:
    """A measurement of a plan at the largest sizes with what is found at others; "failed" where the
    plan is wrong there."""
    sizes, said = compare_sizes(graph, built, planned, predicted, report)
    found = replace(measured, sizes=tuple(sizes))
    if said:
        return replace(found, status=FAILED_STATUS, message=said)
    return replace(found, message=f"{found.message}; {_describe_sizes(graph, sizes)}")


def _describe_sizes(graph: Graph, measured: list[SizeMeasurement]) -> str:
    """What was compared, as a clause."""
    assert graph.dynamic is not None
    exact = all(one.predicted_peak is not None for one in measured)
    said = "the same bits" + (" and the predicted peak" if exact else "")
    return f"{graph.dynamic.describe()}: {said} at {len(measured)} sizes below the largest, too"
