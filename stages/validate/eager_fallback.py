"""The plan of eager's kernels that a module of fused ones carries: eager's bits, its own peak."""

from __future__ import annotations

from pathlib import Path

from torch import nn

from tightfit.schemas.graph.training_graph import Graph
from tightfit.stages.torch_utils.devices import enter_device, parse_device
from tightfit.stages.torch_utils.model_factory import BuiltModel
from tightfit.stages.validate.comparison import SEED, copy_model, freeze_garbage_collector
from tightfit.stages.validate.load import load_from_package, load_package
from tightfit.stages.validate.measure import measure_memory
from tightfit.stages.validate.scenarios import seed_host_random
from tightfit.stages.validate.training_step import StepRunner, detach_sample
from tightfit.stages.validate.validate import check_planned_module

EAGER_PLAN = "eager"
"""The name of that plan in a package."""


def has_eager_fallback(module: Path | str) -> bool:
    """Whether a module carries a plan of eager's kernels; raises ArtifactError where it is none."""
    return hasattr(load_package(module), EAGER_PLAN)


def check_eager_fallback(
    graph: Graph, built: BuiltModel, module: Path | str, device: str
) -> tuple[str, str]:
    """A sentence on what is wrong with the plan of eager's kernels that a module carries, whose
    graph is given, "" for nothing, and one on what it takes."""
    package = getattr(load_package(module), EAGER_PLAN)

    def planned() -> nn.Module:
        return load_from_package(package, module, copy_model(built.model))

    said = check_planned_module(graph, built, planned())
    if said:
        return f"Beside, with eager's kernels: {said}", ""
    place = str(parse_device(device))
    with enter_device(place), freeze_garbage_collector(), seed_host_random(SEED):
        sample = detach_sample(built.samples[0])
        peak = measure_memory(planned(), StepRunner.of(graph, built), sample, place)[0].peak
    if peak != package.PREDICTED_PEAK:
        foretold = f"where {package.PREDICTED_PEAK} were predicted"
        return f"Beside, with eager's kernels: the step takes {peak} bytes {foretold}.", ""
    return "", f"The plan of eager's kernels beside it has eager's bits and takes {peak} bytes."
