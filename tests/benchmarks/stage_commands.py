"""Runs stages as commands, and counts the time of the processor."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path


def run_stage(*arguments: str | Path) -> float:
    """Runs a stage with one thread; the seconds of CPU that it took."""
    before = _cpu_seconds()
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}
    words = [sys.executable, "-m", "tightfit", *map(str, arguments)]
    subprocess.run(words, check=True, env=environment)
    return _cpu_seconds() - before


def _cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
