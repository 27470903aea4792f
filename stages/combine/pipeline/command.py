"""`pipeline`: from a model and the plan of its chain to what the ranks of a pipeline run."""

from __future__ import annotations

import argparse
from pathlib import Path

from tightfit.util.command_line import LineageEntry

PLAN, PATTERN, SEQUENCE = "plan.json", "pattern.arrow", "sequence.arrow"


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
    """Writes pipeline.json, and for each stage a folder with its graph and its schedule.

    Raises ConfigError or ArtifactError where an option or a file is not what it should be,
    ModelError where the step cannot be divided, ScheduleError where a rank has too little memory.
    """
    from tightfit.schemas.block_options import read_block_options
    from tightfit.schemas.blocks import read_blocks
    from tightfit.schemas.costs import read_costs
    from tightfit.schemas.graph.training_graph import GRAPH, read_graph, write_graph
    from tightfit.schemas.lineage import remove_with_lineage
    from tightfit.schemas.pipeline import (
        MAX_MICROBATCHES,
        PIPELINE_FILE,
        stage_folder,
        write_pipeline,
    )
    from tightfit.schemas.pipeline_pattern import read_pipeline_pattern
    from tightfit.schemas.pipeline_plan import read_pipeline_plan
    from tightfit.schemas.schedule import write_schedule
    from tightfit.schemas.sequence import read_sequence
    from tightfit.schemas.store import read
    from tightfit.stages.combine.pipeline.split import PlannedPipeline, split_pipeline
    from tightfit.util.errors import ConfigError

    if not 1 <= options.microbatches <= MAX_MICROBATCHES:
        raise ConfigError(
            f"--microbatches {options.microbatches}: expected 1 to {MAX_MICROBATCHES}"
        )
    plan = read_pipeline_plan(options.plan / PLAN)
    if plan.status == "infeasible":
        raise ConfigError(f"there is no pipeline to split: {plan.message}")
    if (options.options is not None) != (plan.stage_recompute == "rockmate"):
        raise ConfigError("--options is given where the plan has rockmate inside, and only there")
    planned = PlannedPipeline(
        plan,
        read_pipeline_pattern(options.plan / PATTERN),
        read_sequence(options.plan / SEQUENCE) if plan.stage_recompute else (),
        None if options.options is None else read_block_options(options.options),
    )
    found = split_pipeline(
        read_graph(options.graph),
        read(options.graph, GRAPH).digest,
        read_costs(options.costs),
        read_blocks(options.blocks),
        planned,
        options.microbatches,
    )
    remove_with_lineage(options.out / PIPELINE_FILE)
    for number, (graph, steps) in enumerate(zip(found.graphs, found.schedules, strict=True), 1):
        folder = options.out / stage_folder(number)
        digest = write_graph(folder / "graph.arrow", graph)
        write_schedule(folder / "schedule.arrow", steps, digest)
    write_pipeline(options.out / PIPELINE_FILE, found.pipeline)
    for rank, name in enumerate(found.pipeline.devices):
        own = [str(stage.stage) for stage in found.pipeline.stages if stage.rank == rank]
        print(
            f"rank {rank} ({name}): stages {', '.join(own)}; {found.pipeline.fixed[rank]:,} bytes "
            f"of parameters and buffers, {found.pipeline.peaks[rank]:,} bytes of the step"
        )


def lineage_entries(options: argparse.Namespace) -> list[LineageEntry]:
    """What `run` made of what."""
    from tightfit.schemas.pipeline import PIPELINE_FILE, read_pipeline, stage_folder

    pipeline = read_pipeline(options.out / PIPELINE_FILE)
    files = [
        options.out / stage_folder(stage.stage) / name
        for stage in pipeline.stages
        for name in ("graph.arrow", "schedule.arrow")
    ]
    planned = [options.plan / name for name in (PLAN, PATTERN, SEQUENCE)]
    read = [options.graph, options.costs, options.blocks]
    read += [path for path in planned if path.exists()]
    read += [options.options] if options.options else []
    return [
        LineageEntry(
            [options.out / PIPELINE_FILE, *files], read, {"microbatches": options.microbatches}
        )
    ]
