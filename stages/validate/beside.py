"""The plan of eager's kernels that a module of fused ones carries: eager's bits, its own peak."""

from __future__ import annotations

from pathlib import Path

from torch import nn

from tightfit.schemas.graph import Graph
from tightfit.stages.device.devices import device_named, entered
from tightfit.stages.device.factory import Built
from tightfit.stages.validate.comparison import SEED, copied, quick_collections
from tightfit.stages.validate.load import load_package, planned_by
from tightfit.stages.validate.measure import measure_memory
from tightfit.stages.validate.rounds import other_numbers
from tightfit.stages.validate.step import Stepper, fresh_sample
from tightfit.stages.validate.validate import check

PART = "eager"
"""The name of that plan in a package."""


def carries_eager(module: Path | str) -> bool:
    """Whether a module carries a plan of eager's kernels; raises ArtifactError where it is none."""
    return hasattr(load_package(module), PART)


def check_beside(graph: Graph, built: Built, module: Path | str, device: str) -> tuple[str, str]:
    """A sentence on what is wrong with the plan of eager's kernels that a module carries, whose
    graph is given, "" for nothing, and one on what it takes."""
    package = getattr(load_package(module), PART)

    def planned() -> nn.Module:
        return planned_by(package, module, copied(built.model))

    said = check(graph, built, planned())
    if said:
        return f"Beside, with eager's kernels: {said}", ""
    place = str(device_named(device))
    with entered(place), quick_collections(), other_numbers(SEED):
        sample = fresh_sample(built.samples[0])
        peak = measure_memory(planned(), Stepper.of(graph, built), sample, place)[0].peak
    if peak != package.PREDICTED_PEAK:
        foretold = f"where {package.PREDICTED_PEAK} were predicted"
        return f"Beside, with eager's kernels: the step takes {peak} bytes {foretold}.", ""
    return "", f"The plan of eager's kernels beside it has eager's bits and takes {peak} bytes."
