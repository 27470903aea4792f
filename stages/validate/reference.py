"""Measures a model's own step, once, for the validations of all of its plans."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tightfit.schemas.graph import Graph
from tightfit.schemas.measurement import LinePoint, thin
from tightfit.schemas.reference import Reference
from tightfit.schemas.telling import Doing, Telling
from tightfit.stages.device.devices import device_named, entered, is_out_of_memory, release
from tightfit.stages.device.factory import Built
from tightfit.stages.device.identity import describe_device
from tightfit.stages.validate.comparison import MOST, ORIGINAL_STEP, Comparer, quick_collections
from tightfit.stages.validate.measure import measure_alone, measure_memory
from tightfit.stages.validate.step import Stepper, fresh_sample

UNPLANNED = "unplanned"


@dataclass(frozen=True)
class Original:
    """What was measured of a model's own step, and its memory line."""

    reference: Reference
    line: Sequence[LinePoint]

    def holds_for(self, device: str) -> bool:
        """Whether it was measured on such a device, with this build of PyTorch and as many
        threads."""
        return self.reference.device == describe_device(device)


def measure_original(
    graph: Graph,
    digest: str,
    built: Built,
    runs: int,
    device: str,
    report: Telling | None = None,
) -> Original:
    """Runs the model of a graph, which has a digest: in the rounds of a comparison, for its memory,
    and `runs` times for its time; `report` is told of each step.

    What does not fit on the device is left out. Raises ModelError where the model cannot run its
    samples.
    """
    place, stepper = device_named(device), Stepper.of(graph, built)
    comparer = Comparer.of(built.model, stepper, built.samples, False, place, graph)
    told = Doing(report, MOST // 2 + 1 + runs)
    with entered(place), quick_collections():
        reference = Reference(digest, describe_device(place), {})
        try:
            original = comparer.original_here()
            rounds = comparer.left(original, told)
            reference = Reference(digest, reference.device, rounds)
            told(f"the memory of {ORIGINAL_STEP}")
            sample = fresh_sample(built.samples[0])
            memory = measure_memory(original, stepper, sample, str(place), warm=bool(rounds))
            times = measure_alone(original, stepper, sample, runs, str(place), told)
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            release(place)
            return Original(reference, [])
    fresh, accumulating = memory
    line = [LinePoint(UNPLANNED, seconds, live) for seconds, live in thin(fresh.line)]
    peaks = (fresh.peak, accumulating.peak)
    found = (reference.rounds, *peaks, tuple(times.runs), times.planned.lost)
    return Original(Reference(digest, reference.device, *found), line)
