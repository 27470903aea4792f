"""`tightfit chain --machine`: plans a pipeline from files."""

from __future__ import annotations

import argparse

from tightfit.stages.combine.pipeline.plan_task import PipelineTask
from tightfit.util.command_line import LineageEntry, print_plan_status
from tightfit.util.errors import ConfigError
from tightfit.util.progress import StageProgress
from tightfit.util.solver_engines import ENGINES

STAGE_RECOMPUTE = ("rotor", "rockmate")
PIPELINE_OPTIONS = (
    *("period", "weight_copies", "buffers", "stage_recompute", "k", "microbatches", "solver"),
)
"""What only a pipeline takes."""


def add_pipeline_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds what only a pipeline takes."""
    group = parser.add_argument_group("for pipelines")
    group.add_argument("--period", type=float, help="the seconds that a batch may take")
    group.add_argument(
        "--weight-copies",
        type=int,
        help="how many times a device stores its parameters: 3 (two versions and a gradient, the "
        "default) or what a flush and the optimizer take",
    )
    group.add_argument(
        "--buffers",
        action="store_true",
        default=None,
        help="count buffers for what crosses a cut, on both sides",
    )
    group.add_argument(
        "--stage-recompute",
        choices=STAGE_RECOMPUTE,
        help="let stages compute again: positions that keep everything or nothing (rotor), or the "
        "options of blocks in --options (rockmate)",
    )
    group.add_argument("--k", type=int, help="leave out every (k+1)-th batch (k_periodic)")
    group.add_argument(
        "--microbatches",
        type=int,
        help="the batches between two flushes (gpipe), four for each device by default",
    )
    group.add_argument(
        "--solver",
        choices=ENGINES,
        help="what solves the integer programs of allocators that have some (default: highs)",
    )


def check_no_pipeline(options: argparse.Namespace) -> None:
    """Raises ConfigError where an option is given that only a pipeline takes."""
    for name in PIPELINE_OPTIONS:
        if getattr(options, name) is not None:
            raise ConfigError(f"--{name.replace('_', '-')} is for pipelines, and needs --machine")


def run_pipeline(options: argparse.Namespace) -> None:
    """Writes the plan of a pipeline into the folder `options.out` and prints the status.

    Raises ConfigError or ArtifactError when an option or a file is not what it should be.
    """
    if len(options.chain) != 1:
        raise ConfigError("a pipeline is planned for one chain, and no join")
    if options.budget is not None:
        raise ConfigError("--budget is not for pipelines: the memory is that of the machine")
    plan = _parse_task(options).run(StageProgress())
    print_plan_status(plan.status, plan.message, options)


def pipeline_lineage_entries(options: argparse.Namespace) -> list[LineageEntry]:
    """What `run_pipeline` made of what."""
    return _parse_task(options).lineage_entries()


def _parse_task(options: argparse.Namespace) -> PipelineTask:
    return PipelineTask(
        options.chain[0],
        options.machine,
        options.strategy,
        options.out,
        options.period,
        options.weight_copies,
        options.buffers,
        options.stage_recompute,
        options.options,
        options.k,
        options.solver,
        options.microbatches,
    )
