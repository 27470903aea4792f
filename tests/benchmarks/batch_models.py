"""`python -m tests.benchmarks.batch_models`: what the workflow itself takes for a batch of small
models on a described device: the dry run of 100 models, and the CPU time of a job of a few."""

from __future__ import annotations

import argparse
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import yaml

FACTORY = """
from torch import nn, randn


def tower(width):
    layers = nn.Linear(width, width), nn.Linear(width, width)
    return nn.Sequential(*layers).train(), ((randn(16, width),), {})
"""
DRY_RUN_LIMIT = 6.0
"""Seconds that a dry run of 100 models may take."""
JOB_LIMIT = 1.0
"""Seconds of CPU that a job of a small model on a described device may take."""


@dataclass(frozen=True)
class RunUsage:
    """What a run took, in seconds, and what it printed on standard output and standard error."""

    wall: float
    cpu: float
    stdout: str
    stderr: str


def configure(folder: Path, models: int) -> None:
    """Writes a factory, and a configuration with so many models of it."""
    (folder / "towers.py").write_text(FACTORY)
    widths = [8 * number for number in range(1, models + 1)]
    model = {"factory": "towers:tower", "matrix": {"width": widths}}
    document = {"device": "h100", "models": {"tower": model}, "budgets": ["90%"]}
    (folder / "config.yaml").write_text(yaml.safe_dump(document))


def run(folder: Path, *options: str) -> RunUsage:
    """Runs the workflow; ends if that fails, with what it said."""
    before, start = _cpu_seconds(), time.perf_counter()
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    ended = subprocess.run(
        [sys.executable, "-m", "tightfit", "run", str(folder / "config.yaml"), *options],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if ended.returncode != 0:
        sys.exit(ended.stderr)
    wall = time.perf_counter() - start
    return RunUsage(wall, _cpu_seconds() - before, ended.stdout, ended.stderr)


def _cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    """Prints the figures, each beside its limit."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks.batch_models", description=__doc__
    )
    parser.add_argument("--models", type=int, default=100, help="models of the dry run")
    parser.add_argument("--planned", type=int, default=4, help="models that are planned")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="batch-") as place:
        folder = Path(place)
        configure(folder, options.models)
        dry = run(folder, "--dry-run")
        print(
            f"dry run of {options.models} models: {dry.wall:.1f} s, {dry.cpu:.1f} s of CPU "
            f"(at most {DRY_RUN_LIMIT} s)"
        )
        configure(folder, options.planned)
        made = run(folder)
        jobs = len(re.findall(r"^\[ *\d+/\d+\]", made.stderr, re.MULTILINE))
        print(
            f"{jobs} jobs of {options.planned} models: {made.cpu / jobs:.2f} s of CPU each "
            f"(at most {JOB_LIMIT} s)"
        )


if __name__ == "__main__":
    main()
