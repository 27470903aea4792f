"""`python -m tests.benchmarks.idle_run`: how long a run with nothing to do takes, 20 models by 5
budgets.

One model is planned; its results stand for those of the others, which only have other names.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.workflow.conftest import Workplace, copy_checkout

BUDGETS = ["90%", "80%", "70%", "60%", "50%"]
MODEL = {
    "factory": "data.models:gpt2",
    "arguments": {
        "layers": 2, "width": 64, "heads": 2, "vocabulary": 100, "batch": 2, "tokens": 16
    },
}  # fmt: skip


def configuration(models: int) -> dict[str, Any]:
    """So many models of the same factory."""
    return {
        "models": {f"model{number}": MODEL for number in range(models)},
        "budgets": BUDGETS,
        "strategies": ["rockmate"],
        "solver": {"peaks": 2, "saves": 2},
        "pairs": 2,
    }


def prepare(place: Workplace, models: int) -> None:
    """Plans one model and gives its results to all; Snakemake takes them for done."""
    place.configure(configuration(1))
    check(place.snakemake())
    results = place.folder / "results"
    for number in range(1, models):
        shutil.copytree(results / "model0", results / f"model{number}")
    place.configure(configuration(models))
    check(place.snakemake("--touch", "--force", "--forceall"))


def check(run: subprocess.CompletedProcess[str]) -> None:
    """Ends where a command failed, with what it said."""
    if run.returncode != 0:
        sys.exit(run.stderr)


def idle_seconds(place: Workplace) -> float:
    """The wall-clock seconds of what `make plan` runs, where there is nothing to do."""
    start = time.perf_counter()
    run = place.plan()
    taken = time.perf_counter() - start
    check(run)
    if "Nothing to be done" not in run.stdout:
        sys.exit(f"there was something to do:\n{run.stdout}")
    return taken


def main() -> None:
    """Prints the seconds as a table."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks.idle_run", description=__doc__
    )
    parser.add_argument("--models", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="idle-") as folder:
        checkout = copy_checkout(Path(folder))
        place = Workplace(checkout, checkout)
        prepare(place, options.models)
        taken = [idle_seconds(place) for _ in range(options.rounds)]
    print(
        f"{options.models} models, {len(BUDGETS)} budgets each, nothing to do: "
        f"{statistics.median(taken):.1f} s ({min(taken):.1f} to {max(taken):.1f})"
    )


if __name__ == "__main__":
    main()
