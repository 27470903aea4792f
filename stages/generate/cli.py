"""`generate`: from graph, schedule and plan to a Python package."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path

from schemas.made import Made
from stages.device.operators_option import add_operators_argument, operators_settings


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the stage."""
    parser.add_argument("--graph", type=Path, required=True, help="graph.arrow")
    parser.add_argument("--schedule", type=Path, required=True, help="schedule.arrow")
    parser.add_argument("--plan", type=Path, required=True, help="plan.json")
    parser.add_argument("--backend", default="aten", help="what to write, by name: aten")
    parser.add_argument("--out", type=Path, required=True, help="the package's directory")
    parser.add_argument("--search-path", action="append", default=[], help="where modules are")
    add_operators_argument(parser)


def run(options: argparse.Namespace) -> None:
    """Writes the package; where the plan is infeasible, one whose `load` says so."""
    from schemas.errors import ArtifactError
    from schemas.graph import GRAPH, read_graph
    from schemas.plan import plan_digest, read_plan
    from schemas.schedule import SCHEDULE, read_schedule
    from schemas.store import read
    from stages.device.foreign import registered
    from stages.generate.package import infeasible_package, package, signed, write_directory
    from stages.generate.registry import backend

    write = backend(options.backend)
    plan = asdict(read_plan(options.plan))
    scheduled, traced = read(options.schedule, SCHEDULE), read(options.graph, GRAPH)
    if scheduled.metadata.get("graph") not in (None, "", traced.digest):
        raise ArtifactError(f"{options.schedule}: is the schedule of another graph")
    if plan["verdict"] == "infeasible":
        files = infeasible_package(plan)
    else:
        with registered(options.operators, options.search_path):
            files = package(read_graph(options.graph), read_schedule(options.schedule), plan, write)
    sources = (traced.digest, scheduled.digest, plan_digest(options.plan))
    write_directory(options.out, signed(files, *sources))


def made(options: argparse.Namespace) -> list[Made]:
    """What `run` made of what."""
    settings = {"backend": options.backend, **operators_settings(options)}
    return [Made([options.out], [options.graph, options.schedule, options.plan], settings)]
