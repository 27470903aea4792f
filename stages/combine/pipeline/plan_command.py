"""`tightfit chain --machine`: plans a pipeline from files."""

from __future__ import annotations

import argparse
import math
from typing import TYPE_CHECKING

from tightfit.schemas.machine import machine_path
from tightfit.util.command_line import LineageEntry
from tightfit.util.errors import ConfigError
from tightfit.util.solver_engines import ENGINES, HIGHS_ENGINE

if TYPE_CHECKING:
    from tightfit.stages.combine.pipeline.plan import PipelineSettings

PATTERN, PLAN, SEQUENCE = "pattern.arrow", "plan.json", "sequence.arrow"
STAGE_RECOMPUTE = ("rotor", "rockmate")


def add_pipeline_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds what only a pipeline takes."""
    group = parser.add_argument_group("for pipelines")
    group.add_argument(
        "--machine",
        type=machine_path,
        help="the .json of the devices to plan a pipeline on, or of the one to offload from",
    )
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
        "--solver",
        choices=ENGINES,
        help="what solves the integer programs of allocators that have some (default: highs)",
    )


def check_no_pipeline(options: argparse.Namespace) -> None:
    """Raises ConfigError where an option is given that only a pipeline takes."""
    for name in ("period", "weight_copies", "buffers", "stage_recompute", "k", "solver"):
        if getattr(options, name) is not None:
            raise ConfigError(f"--{name.replace('_', '-')} is for pipelines, and needs --machine")


def run_pipeline(options: argparse.Namespace) -> None:
    """Writes plan.json, pattern.arrow where there is a plan, and sequence.arrow where its stages
    may compute again, into the folder `options.out`, and prints the verdict.

    Raises ConfigError or ArtifactError when an option or a file is not what it should be.
    """
    from tightfit.schemas import store
    from tightfit.schemas.chain import CHAIN, read_chain
    from tightfit.schemas.lineage import remove_with_lineage
    from tightfit.schemas.machine import read_machine
    from tightfit.schemas.pipeline_pattern import write_pipeline_pattern
    from tightfit.schemas.pipeline_plan import write_pipeline_plan
    from tightfit.schemas.sequence import write_sequence
    from tightfit.stages.combine.pipeline.allocator import load_allocator
    from tightfit.stages.combine.pipeline.plan import check_uniform_devices, plan_pipeline
    from tightfit.util.command_line import format_verdict

    if len(options.chain) != 1:
        raise ConfigError("a pipeline is planned for one chain, and no join")
    if options.budget is not None:
        raise ConfigError("--budget is not for pipelines: the memory is that of the machine")
    if (options.options is not None) != (options.stage_recompute == "rockmate"):
        raise ConfigError("--options and --stage-recompute rockmate are given together")
    chosen = load_allocator(options.strategy)
    settings = parse_pipeline_settings(options)
    if settings.k is not None and not chosen.about.turns:
        raise ConfigError(f"--strategy {options.strategy} takes no --k")
    if options.solver is not None and not chosen.about.solves:
        raise ConfigError(
            f"--strategy {options.strategy} takes no --solver: it solves no integer program"
        )
    if settings.inside and not chosen.about.inside:
        raise ConfigError(f"--strategy {options.strategy} takes no --stage-recompute")
    path = options.chain[0]
    chain, machine = read_chain(path), read_machine(options.machine)
    fleet = check_uniform_devices(machine, options.machine, chosen.about.contiguous)
    plan, pattern, sequence = plan_pipeline(chain, fleet, machine.name, chosen, settings)
    digest = store.read(path, CHAIN).digest
    for name in (PATTERN, SEQUENCE):
        remove_with_lineage(options.out / name)
    if pattern is not None:
        write_pipeline_pattern(options.out / PATTERN, pattern, digest)
    if sequence:
        write_sequence(options.out / SEQUENCE, sequence, digest)
    write_pipeline_plan(options.out / PLAN, plan)
    print(format_verdict(plan.status, plan.message))


def parse_pipeline_settings(options: argparse.Namespace) -> PipelineSettings:
    """The settings of the command line; raises ConfigError where one is out of range, and
    ArtifactError where options cannot be read."""
    from tightfit.schemas.block_options import read_block_options
    from tightfit.stages.combine.pipeline.plan import PipelineSettings

    copies = 3 if options.weight_copies is None else options.weight_copies
    if not 0 <= copies <= 1000:
        raise ConfigError(f"--weight-copies {copies}: expected 0 to 1000")
    if options.k is not None and not 1 <= options.k <= 1000:
        raise ConfigError(f"--k {options.k}: expected 1 to 1000")
    period = options.period
    if period is not None and not (math.isfinite(period) and period > 0):
        raise ConfigError(f"--period {period}: expected a number of seconds above 0")
    inside = options.stage_recompute or ""
    blocks = read_block_options(options.options) if inside == "rockmate" else None
    engine = options.solver or HIGHS_ENGINE
    return PipelineSettings(
        period, copies, bool(options.buffers), options.k, inside, blocks, engine
    )


def derived_pipeline(options: argparse.Namespace) -> list[LineageEntry]:
    """What `run_pipeline` made of what."""
    settings = {
        name: getattr(options, name)
        for name in (
            "strategy",
            "period",
            "weight_copies",
            "buffers",
            "stage_recompute",
            "k",
            "solver",
        )
    }
    outputs = [path for name in (PATTERN, SEQUENCE, PLAN) if (path := options.out / name).exists()]
    read = [*options.chain, options.machine, *([options.options] if options.options else [])]
    return [LineageEntry(outputs, read, settings)]
