"""`generate`: from graph, schedule and plan to a Python package."""

from __future__ import annotations

import argparse
from dataclasses import fields
from pathlib import Path

from tightfit.stages.generate.task import PackageTask
from tightfit.stages.torch_utils.operators_option import add_operators_argument
from tightfit.util.command_line import LineageEntry, print_status
from tightfit.util.progress import StageProgress


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the stage."""
    parser.add_argument(
        "--graph",
        type=Path,
        nargs="+",
        required=True,
        help="graph.arrow; of several the one that the schedule is of is taken",
    )
    parser.add_argument("--schedule", type=Path, help="schedule.arrow")
    parser.add_argument(
        "--pipeline", type=Path, help="the folder that `pipeline` wrote, in the place of a schedule"
    )
    parser.add_argument("--plan", type=Path, required=True, help="plan.json")
    for name, what in (
        ("graph", "graph.arrow"),
        ("schedule", "schedule.arrow"),
        ("plan", "plan.json"),
    ):
        parser.add_argument(
            f"--eager-{name}",
            type=Path,
            help=f"{what} of the plan of eager's kernels to put beside",
        )
    parser.add_argument(
        "--microbatch",
        type=Path,
        help="microbatch.arrow of `optimizer-offload`, the schedule of each of several "
        "microbatches that is not the last one (default: that beside the schedule)",
    )
    parser.add_argument(
        "--libraries", action="store_true", help="compile libraries of the groups that go along"
    )
    parser.add_argument("--backend", default="aten", help="what to write, by name: aten")
    parser.add_argument("--out", type=Path, required=True, help="the package's directory")
    parser.add_argument("--search-path", action="append", default=[], help="where modules are")
    add_operators_argument(parser)


class _LibraryPrinter(StageProgress):
    """Prints how many libraries are compiled."""

    def report(self, done: int, most: int, doing: str = "") -> None:
        """Prints the number."""
        print(f"compiled {done} of {most} libraries", flush=True)


def run(options: argparse.Namespace) -> None:
    """Writes the package; where the plan is infeasible, one whose `load` says so, which is printed,
    too. The exit code is 0 then: of several plans others may fit."""
    message = _parse_task(options).run(_LibraryPrinter())
    if message:
        print_status(
            "infeasible", f"{options.out} has no step, and load raises: {message}", options
        )


def lineage_entries(options: argparse.Namespace) -> list[LineageEntry]:
    """What `run` made of what."""
    return _parse_task(options).lineage_entries()


def _parse_task(options: argparse.Namespace) -> PackageTask:
    named = {field.name: getattr(options, field.name) for field in fields(PackageTask)[1:]}
    return PackageTask(options.graph, **named)
