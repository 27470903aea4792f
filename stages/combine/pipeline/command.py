"""`pipeline`: from a model and the plan of its chain to what the ranks of a pipeline run."""

from __future__ import annotations

import argparse
from pathlib import Path

from tightfit.stages.combine.pipeline.split_task import SplitTask
from tightfit.util.command_line import LineageEntry, is_standalone
from tightfit.util.progress import StageProgress


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's options."""
    parser.add_argument("--graph", type=Path, required=True, help="graph.arrow of the model")
    parser.add_argument("--costs", type=Path, required=True, help="costs.arrow of its ops")
    parser.add_argument("--blocks", type=Path, required=True, help="blocks.arrow of its chain")
    parser.add_argument(
        "--plan", type=Path, required=True, help="the folder that `chain --machine` wrote"
    )
    parser.add_argument(
        "--options", type=Path, help="options.arrow, of a plan with rockmate inside"
    )
    parser.add_argument(
        "--microbatches", type=int, default=4, help="calls of the model in a step (default: 4)"
    )
    parser.add_argument("--out", type=Path, required=True, help="the folder to write into")


def run(options: argparse.Namespace) -> None:
    """Writes what the ranks run and prints what each of them has."""
    pipeline = _parse_task(options).run(StageProgress())
    if not pipeline.feasible:
        print(f"{pipeline.model}: the plan is infeasible, so that no rank has anything to run")
    before = "" if is_standalone(options) else f"{options.out}: "
    for rank, name in enumerate(pipeline.devices):
        own = [str(stage.stage) for stage in pipeline.stages if stage.rank == rank]
        print(
            f"{before}rank {rank} ({name}): stages {', '.join(own)}; "
            f"{pipeline.fixed[rank]:,} bytes of parameters and buffers, "
            f"{pipeline.peaks[rank]:,} bytes of the step"
        )


def lineage_entries(options: argparse.Namespace) -> list[LineageEntry]:
    """What `run` made of what."""
    return _parse_task(options).lineage_entries()


def _parse_task(options: argparse.Namespace) -> SplitTask:
    files = (options.graph, options.costs, options.blocks, options.plan, options.out)
    return SplitTask(*files, options.options, options.microbatches)
