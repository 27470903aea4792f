"""`generate`: from graph, schedule and plan to a Python package."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path

from schemas.derived import Derived
from stages.device.operators_option import add_operators_argument, operators_settings


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the stage."""
    parser.add_argument("--graph", type=Path, required=True, help="graph.arrow")
    parser.add_argument("--schedule", type=Path, help="schedule.arrow")
    parser.add_argument(
        "--pipeline", type=Path, help="the folder that `split` wrote, in the place of a schedule"
    )
    parser.add_argument("--plan", type=Path, required=True, help="plan.json")
    parser.add_argument("--backend", default="aten", help="what to write, by name: aten")
    parser.add_argument("--out", type=Path, required=True, help="the package's directory")
    parser.add_argument("--search-path", action="append", default=[], help="where modules are")
    add_operators_argument(parser)


def run(options: argparse.Namespace) -> None:
    """Writes the package; where the plan is infeasible, one whose `load` says so."""
    from schemas.errors import ArtifactError, ConfigError
    from schemas.graph import GRAPH, read_graph
    from schemas.plan import plan_digest, read_plan
    from schemas.schedule import SCHEDULE, read_schedule, schedule_updates
    from schemas.store import read
    from stages.device.foreign import registered
    from stages.generate.package import infeasible_package, package, signed, write_directory
    from stages.generate.registry import backend

    if (options.schedule is None) == (options.pipeline is None):
        raise ConfigError("generate takes either a --schedule or a --pipeline")
    if options.pipeline is not None:
        _pipeline(options)
        return
    write = backend(options.backend)
    plan = asdict(read_plan(options.plan))
    scheduled, traced = read(options.schedule, SCHEDULE), read(options.graph, GRAPH)
    if scheduled.metadata.get("graph") not in (None, "", traced.digest):
        raise ArtifactError(f"{options.schedule}: is the schedule of another graph")
    if plan["verdict"] == "infeasible":
        files = infeasible_package(plan)
    else:
        with registered(options.operators, options.search_path):
            steps, updates = read_schedule(options.schedule), schedule_updates(options.schedule)
            files = package(read_graph(options.graph), steps, plan, write, updates)
    sources = (traced.digest, scheduled.digest, plan_digest(options.plan))
    write_directory(options.out, signed(files, *sources))


def _pipeline(options: argparse.Namespace) -> None:
    """Writes the package of a pipeline."""
    from schemas.errors import ArtifactError
    from schemas.graph import GRAPH, read_graph
    from schemas.pipeline import FILE, read_pipeline, stage_folder
    from schemas.pipeline_plan import read_pipeline_plan
    from schemas.plan import plan_digest
    from schemas.schedule import SCHEDULE, read_schedule
    from schemas.store import read
    from stages.device.foreign import registered
    from stages.generate.package import signed, write_directory
    from stages.generate.pipeline import pipeline_package

    pipeline, plan = read_pipeline(options.pipeline / FILE), read_pipeline_plan(options.plan)
    traced = read(options.graph, GRAPH)
    if pipeline.graph != traced.digest:
        raise ArtifactError(f"{options.pipeline}: is the pipeline of another graph")
    stages = []
    for stage in pipeline.stages:
        folder = options.pipeline / stage_folder(stage.stage)
        own = read(folder / "graph.arrow", GRAPH)
        if read(folder / "schedule.arrow", SCHEDULE).metadata.get("graph") != own.digest:
            raise ArtifactError(f"{folder}: the schedule is one of another graph")
        stages.append(
            (read_graph(folder / "graph.arrow"), read_schedule(folder / "schedule.arrow"))
        )
    facts = {name: getattr(plan, name) for name in ("strategy", "machine", "sentence")}
    with registered(options.operators, options.search_path):
        files = pipeline_package(read_graph(options.graph), pipeline, stages, facts)
    schedules = _digest_of(options.pipeline)
    sources = (traced.digest, schedules, plan_digest(options.plan))
    write_directory(options.out, signed(files, *sources))


def _digest_of(folder: Path) -> str:
    """The SHA-256 of what `split` wrote."""
    import hashlib

    from schemas.pipeline import FILE
    from schemas.store import read_bytes

    return hashlib.sha256(read_bytes(folder / FILE)).hexdigest()


def derived(options: argparse.Namespace) -> list[Derived]:
    """What `run` made of what."""
    settings = {"backend": options.backend, **operators_settings(options)}
    run_by = options.schedule
    if options.pipeline is not None:
        from schemas.pipeline import FILE

        run_by = options.pipeline / FILE
    return [Derived([options.out], [options.graph, run_by, options.plan], settings)]
