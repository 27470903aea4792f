"""`generate`: from graph, schedule and plan to a Python package."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from tightfit.stages.torch_utils.operators_option import add_operators_argument, operators_setting
from tightfit.util.command_line import LineageEntry

if TYPE_CHECKING:
    from tightfit.stages.generate.optimizer_step import MicrobatchSchedule
    from tightfit.stages.generate.package import PlannedGraph


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
        "microbatches that is not the last one",
    )
    parser.add_argument(
        "--libraries", action="store_true", help="compile libraries of the groups that go along"
    )
    parser.add_argument("--backend", default="aten", help="what to write, by name: aten")
    parser.add_argument("--out", type=Path, required=True, help="the package's directory")
    parser.add_argument("--search-path", action="append", default=[], help="where modules are")
    add_operators_argument(parser)


def run(options: argparse.Namespace) -> None:
    """Writes the package; where the plan is infeasible, one whose `load` says so. Raises ModelError
    where libraries of its groups cannot be compiled."""
    from tightfit.schemas.graph.training_graph import GRAPH
    from tightfit.schemas.plan import plan_digest
    from tightfit.schemas.schedule import SCHEDULE, find_schedule_graph
    from tightfit.schemas.store import read
    from tightfit.stages.generate.backends import find_backend
    from tightfit.stages.generate.package import (
        add_lineage_file,
        build_package,
        infeasible_package,
        write_directory,
    )
    from tightfit.stages.runtime.kernels.compile import CompilerError, KernelError
    from tightfit.stages.torch_utils.custom_operators import register_operators
    from tightfit.util.errors import ConfigError, ModelError

    if (options.schedule is None) == (options.pipeline is None):
        raise ConfigError("generate takes either a --schedule or a --pipeline")
    if options.pipeline is not None and len(options.graph) > 1:
        raise ConfigError("generate takes one --graph with --pipeline")
    if options.pipeline is not None:
        _write_pipeline(options)
        return
    write = find_backend(options.backend)
    graph = find_schedule_graph(options.schedule, options.graph)
    with register_operators(options.operators, options.search_path):
        planned = _read_plan(graph, options.schedule, options.plan)
        if planned.plan["status"] == "infeasible":
            files = infeasible_package(planned.plan)
        else:
            try:
                files = build_package(
                    planned.graph,
                    planned.steps,
                    planned.plan,
                    write,
                    planned.updates,
                    _read_eager_plan(options),
                    options.libraries,
                    _read_microbatch_schedule(options.microbatch, graph),
                )
            except (CompilerError, KernelError) as error:
                raise ModelError(str(error)) from error
    digests = read(graph, GRAPH).digest, read(options.schedule, SCHEDULE).digest
    write_directory(options.out, add_lineage_file(files, *digests, plan_digest(options.plan)))


def _read_plan(graph: Path, schedule: Path, plan: Path) -> PlannedGraph:
    """A plan of files; raises ArtifactError where they do not belong together."""
    from tightfit.schemas.graph.training_graph import GRAPH, read_graph
    from tightfit.schemas.plan import read_plan
    from tightfit.schemas.schedule import SCHEDULE, read_schedule, schedule_optimizer_plan
    from tightfit.schemas.store import read
    from tightfit.stages.generate.package import PlannedGraph
    from tightfit.util.errors import ArtifactError

    if read(schedule, SCHEDULE).metadata.get("graph") not in (None, "", read(graph, GRAPH).digest):
        raise ArtifactError(f"{schedule}: is the schedule of another graph")
    updates = schedule_optimizer_plan(schedule)
    return PlannedGraph(
        read_graph(graph), read_schedule(schedule), asdict(read_plan(plan)), updates
    )


def _read_microbatch_schedule(path: Path | None, graph: Path) -> MicrobatchSchedule:
    """The schedule of the microbatches that are not the last one, None where none is given."""
    from tightfit.schemas.graph.training_graph import GRAPH
    from tightfit.schemas.schedule import SCHEDULE, read_schedule, schedule_optimizer_plan
    from tightfit.schemas.store import read
    from tightfit.util.errors import ArtifactError

    if path is None:
        return None
    if read(path, SCHEDULE).metadata.get("graph") != read(graph, GRAPH).digest:
        raise ArtifactError(f"{path}: is the schedule of another graph")
    return read_schedule(path), schedule_optimizer_plan(path)


def _read_eager_plan(options: argparse.Namespace) -> PlannedGraph | None:
    """The plan of eager's kernels to put beside, None where none is asked for."""
    from tightfit.util.errors import ConfigError

    given = (options.eager_graph, options.eager_schedule, options.eager_plan)
    if all(path is None for path in given):
        return None
    if any(path is None for path in given):
        raise ConfigError(
            "generate takes --eager-graph, --eager-schedule and --eager-plan together"
        )
    beside = _read_plan(*given)
    if beside.plan["status"] == "infeasible":
        raise ConfigError(f"beside, with eager's kernels: {beside.plan['message']}")
    return beside


def _write_pipeline(options: argparse.Namespace) -> None:
    """Writes the package of a pipeline."""
    from tightfit.schemas.graph.training_graph import GRAPH, read_graph
    from tightfit.schemas.pipeline import PIPELINE_FILE, read_pipeline, stage_folder
    from tightfit.schemas.pipeline_plan import read_pipeline_plan
    from tightfit.schemas.plan import plan_digest
    from tightfit.schemas.schedule import SCHEDULE, read_schedule
    from tightfit.schemas.store import read
    from tightfit.stages.generate.package import add_lineage_file, write_directory
    from tightfit.stages.generate.pipeline import build_pipeline_package
    from tightfit.stages.torch_utils.custom_operators import register_operators
    from tightfit.util.errors import ArtifactError

    pipeline, plan = (
        read_pipeline(options.pipeline / PIPELINE_FILE),
        read_pipeline_plan(options.plan),
    )
    [graph] = options.graph
    traced = read(graph, GRAPH)
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
    facts = {name: getattr(plan, name) for name in ("strategy", "machine", "message")}
    with register_operators(options.operators, options.search_path):
        files = build_pipeline_package(read_graph(graph), pipeline, stages, facts)
    schedules = _pipeline_digest(options.pipeline)
    sources = (traced.digest, schedules, plan_digest(options.plan))
    write_directory(options.out, add_lineage_file(files, *sources))


def _pipeline_digest(folder: Path) -> str:
    """The SHA-256 of what `pipeline` wrote."""
    import hashlib

    from tightfit.schemas.pipeline import PIPELINE_FILE
    from tightfit.schemas.store import read_bytes

    return hashlib.sha256(read_bytes(folder / PIPELINE_FILE)).hexdigest()


def lineage_entries(options: argparse.Namespace) -> list[LineageEntry]:
    """What `run` made of what."""
    libraries = {"libraries": "compiled"} if options.libraries else {}
    settings = {"backend": options.backend, **libraries, **operators_setting(options)}
    if options.pipeline is not None:
        from tightfit.schemas.pipeline import PIPELINE_FILE

        graph, run_by = options.graph[0], options.pipeline / PIPELINE_FILE
    else:
        from tightfit.schemas.schedule import find_schedule_graph

        graph, run_by = find_schedule_graph(options.schedule, options.graph), options.schedule
    beside = (options.eager_graph, options.eager_schedule, options.eager_plan)
    made_of = [graph, run_by, options.plan]
    made_of += [path for path in (*beside, options.microbatch) if path is not None]
    return [LineageEntry([options.out], made_of, settings)]
