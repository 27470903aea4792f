"""`tightfit fuse`: a graph with groups of pointwise and normalizing ops as single ops."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from tightfit.stages.fuse.task import FuseTask
from tightfit.util.command_line import LineageEntry, parse_count
from tightfit.util.progress import ProgressPrinter


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the stage."""
    parser.add_argument("--graph", type=Path, required=True, help="the graph of the step")
    parser.add_argument("--device", default="cpu", help="the device that will train it")
    parser.add_argument(
        "--jobs", type=parse_count, default=os.cpu_count() or 1, help="groups compiled at a time"
    )
    parser.add_argument("--out", type=Path, required=True, help="the fused graph to write")


class _GroupPrinter(ProgressPrinter):
    """Prints each group that is compiled."""

    def report(self, done: int, most: int, doing: str = "") -> None:
        """Prints how many groups are compiled."""
        print(f"{self.work}: compiled {done} of {most} {self.parts}", flush=True)


def run(options: argparse.Namespace) -> None:
    """Writes the fused graph and prints the number of its groups; standard error names those that
    do not compile."""
    from tightfit.schemas.graph.fused_groups import is_fused_group

    graph, fused = _parse_task(options).run(_GroupPrinter())
    groups = [op.target for op in fused.ops if is_fused_group(op.target)]
    print(
        f"{graph.model}: {len(graph.ops)} ops, {len(fused.ops)} of them left, of which "
        f"{len(groups)} are groups, {len(set(groups))} distinct"
    )


def lineage_entries(options: argparse.Namespace) -> list[LineageEntry]:
    """What `run` made of what."""
    return _parse_task(options).lineage_entries()


def _parse_task(options: argparse.Namespace) -> FuseTask:
    def warn(sentence: str) -> None:
        print(sentence, file=sys.stderr)

    return FuseTask(options.graph, options.device, options.jobs, options.out, warn)
