"""The memory of the process while steps run, as the system counts it: RSS."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from torch import nn

from tightfit.schemas.measurement import Measurement
from tightfit.schemas.reference import ReferenceMeasurement
from tightfit.stages.torch_utils.model_factory import Sample
from tightfit.stages.validate.training_step import StepRunner, clear_gradients
from tightfit.util.allocators import release_free_memory, running_allocator

RESIDENT_STEPS = 2
"""Steps that a process takes for its RSS: pages that the first one leaves are there in the next."""
_STATUS, _CLEAR_REFS = Path("/proc/self/status"), Path("/proc/self/clear_refs")
_RESET_PEAK = "5"


def measure_resident_peak(
    module: nn.Module, stepper: StepRunner, sample: Sample, device: str
) -> int | None:
    """The most bytes of RSS in two steps of a module that has run, above what was there before
    them; None where the system does not count them, and where tensors are on a GPU.

    The room of a loss is written to, as a loss writes. What the allocator kept of earlier work is
    given back first, so that it is not taken for what was there.
    """
    if not device.startswith("cpu"):
        return None
    clear_gradients(module, sample)
    release_free_memory()
    try:
        _CLEAR_REFS.write_text(_RESET_PEAK)
        before = _status_bytes("VmRSS")
        for _ in range(RESIDENT_STEPS):
            replace(stepper, fill_loss_room=True).run(module, sample)
            clear_gradients(module, sample)
        return max(_status_bytes("VmHWM") - before, 0)
    except OSError:
        return None


def add_resident_peak(
    measured: Measurement, known: ReferenceMeasurement, peak: int | None
) -> Measurement:
    """The measurement with the RSS of a planned step, and that of the model's own step."""
    if peak is None:
        return measured
    own = known.resident_peak
    allocator = running_allocator()
    return replace(measured, resident_peak=peak, original_resident_peak=own, allocator=allocator)


def _status_bytes(key: str) -> int:
    """A size in the status of this process, in bytes; raises OSError where it is not there."""
    for line in _STATUS.read_text().splitlines():
        if line.startswith(f"{key}:"):
            return int(line.split()[1]) * 1024
    raise OSError(f"{_STATUS} has no {key}")
