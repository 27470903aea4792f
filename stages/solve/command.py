"""The command `solve`: blocks to options."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from tightfit.schemas.machine import machine_path
from tightfit.stages.solve.task import SolveTask
from tightfit.util.command_line import LineageEntry, parse_count
from tightfit.util.progress import StageProgress
from tightfit.util.solver_engines import BLOCK_SOLVERS


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's options."""
    parser.add_argument("--blocks", type=Path, required=True, help="the blocks of the chain")
    parser.add_argument("--store", type=Path, required=True, help="where solved blocks are kept")
    parser.add_argument(
        "--solver",
        choices=BLOCK_SOLVERS,
        default="highs",
        help="the ILP solver; none: only options that need no ILP",
    )
    parser.add_argument("--peaks", type=parse_count, default=4, help="number of limits on the peak")
    parser.add_argument("--saves", type=parse_count, default=6, help="number of limits on the save")
    parser.add_argument(
        "--machine",
        type=machine_path,
        help="description with a link, over which some of what options keep may leave",
    )
    parser.add_argument(
        "--jobs", type=parse_count, default=os.cpu_count() or 1, help="blocks solved at a time"
    )
    parser.add_argument("--out", type=Path, required=True, help="the options to write")


class _BlockPrinter(StageProgress):
    """Prints each block that is solved."""

    def report(self, done: int, most: int, doing: str = "") -> None:
        """Prints the number of its options."""
        print(doing, flush=True)


def run(options: argparse.Namespace) -> None:
    """Writes the options of all blocks and prints how many were solved."""
    found = _parse_task(options).run(_BlockPrinter())
    print(f"{found.model}: solved {found.solved}, {found.stored} from the store", flush=True)


def lineage_entries(options: argparse.Namespace) -> list[LineageEntry]:
    """What `run` made of what."""
    return _parse_task(options).lineage_entries()


def _parse_task(options: argparse.Namespace) -> SolveTask:
    return SolveTask(
        options.blocks,
        options.store,
        options.solver,
        options.peaks,
        options.saves,
        options.jobs,
        options.out,
        options.machine,
    )
