"""Compares a plan with dynamic shapes with its model at other sizes than the largest."""

from __future__ import annotations

from torch import nn

from tightfit.schemas.graph.dynamic_shapes import graph_at
from tightfit.schemas.graph.training_graph import Graph
from tightfit.stages.torch_utils.devices import device_of_tensors, enter_device
from tightfit.stages.torch_utils.model_factory import BuiltModel, all_tensors
from tightfit.stages.torch_utils.sample_sizes import resize_samples
from tightfit.stages.validate.comparison import SEED, copy_model, freeze_garbage_collector
from tightfit.stages.validate.measure import measure_memory
from tightfit.stages.validate.scenarios import seed_host_random
from tightfit.stages.validate.training_step import StepRunner, detach_sample
from tightfit.stages.validate.validate import check_planned_module
from tightfit.util.progress import ProgressCallback

_BETWEEN = (0.5, 0.29, 0.83)
"""Where, within each range, sizes between the limits are compared: the first alone for a quick
check."""


def compare_sizes(
    graph: Graph,
    built: BuiltModel,
    planned: nn.Module,
    peak: int | None,
    report: ProgressCallback | None = None,
    full: bool = True,
) -> str:
    """Compares a planned module with its original at the smallest sizes and at sizes between, as
    `check_planned_module` does at the largest, and on the CPU its peak with that at the largest.

    Returns "" where nothing is wrong, else a sentence."""
    for sizes in compared_sizes(graph, full):
        own, resized = graph_at(graph, sizes), resize_samples(built, sizes)
        said = check_planned_module(own, resized, planned, report, full)
        if not said and peak is not None and graph.device == "cpu":
            taken = measure_size_peak(own, resized, planned)
            if taken > peak:
                said = f"The planned step takes {taken:,} bytes, and {peak:,} at the largest sizes."
        if said:
            at = ", ".join(f"{name} = {size}" for name, size in sizes.items())
            return f"With dynamic_shapes, at {at}: {said}"
    return ""


def compared_sizes(graph: Graph, full: bool) -> list[dict[str, int]]:
    """The sizes beside the largest at which a plan is compared: the smallest, and sizes between."""
    assert graph.dynamic is not None
    found = [graph.dynamic.smallest]
    for fraction in _BETWEEN if full else _BETWEEN[:1]:
        found.append(
            {
                one.name: one.smallest + int(fraction * (one.largest - one.smallest))
                for one in graph.dynamic.dimensions
            }
        )
    return [sizes for number, sizes in enumerate(found) if sizes not in found[:number]]


def measure_size_peak(graph: Graph, built: BuiltModel, planned: nn.Module) -> int:
    """The bytes that a step of a planned module takes, at the sizes of a sample."""
    place = device_of_tensors(all_tensors(built), graph.device)
    with enter_device(place), freeze_garbage_collector(), seed_host_random(SEED):
        runner, sample = StepRunner.of(graph, built), detach_sample(built.samples[0])
        return measure_memory(copy_model(planned), runner, sample, str(place))[0].peak
