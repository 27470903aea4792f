"""The memory of the process while steps run, as the system counts it: RSS."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from pathlib import Path

from tightfit.schemas.measurement import Measurement
from tightfit.schemas.reference import ReferenceMeasurement
from tightfit.util.allocators import release_free_memory, running_allocator

RESIDENT_STEPS = 2
"""Steps that tell the RSS of steps: pages that the first one leaves are there in the next."""
_STATUS, _CLEAR_REFS = Path("/proc/self/status"), Path("/proc/self/clear_refs")
_MEMORY = Path("/proc/meminfo")
_RESET_PEAK = "5"


class ResidentMemory:
    """The most bytes of RSS since now, above what is there now.

    What the allocator kept of earlier work is given back first, so that it is not taken for what
    was there.
    """

    def __init__(self, device: str) -> None:
        self._before: int | None = None
        if not device.startswith("cpu"):
            return
        release_free_memory()
        with contextlib.suppress(OSError):
            _CLEAR_REFS.write_text(_RESET_PEAK)
            self._before = _read_bytes(_STATUS, "VmRSS")

    def peak(self) -> int | None:
        """These bytes; None where the system does not count them, and where tensors are on a
        GPU."""
        if self._before is None:
            return None
        return max(_read_bytes(_STATUS, "VmHWM") - self._before, 0)


def add_resident_peak(
    measured: Measurement, known: ReferenceMeasurement, peak: int | None
) -> Measurement:
    """The measurement with the RSS of a planned step, and that of the model's own step."""
    if peak is None:
        return measured
    own = known.resident_peak
    allocator = running_allocator()
    return replace(measured, resident_peak=peak, original_resident_peak=own, allocator=allocator)


def available_memory() -> int:
    """The bytes that processes can take more; 0 where the system does not say."""
    with contextlib.suppress(OSError):
        return _read_bytes(_MEMORY, "MemAvailable")
    return 0


def _read_bytes(path: Path, key: str) -> int:
    """A size in a file of the system, in bytes; raises OSError where it is not there."""
    for line in path.read_text().splitlines():
        if line.startswith(f"{key}:"):
            return int(line.split()[1]) * 1024
    raise OSError(f"{path} has no {key}")
