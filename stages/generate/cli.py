"""`generate`: from graph, schedule and plan to a Python package."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the stage."""
    parser.add_argument("--graph", type=Path, required=True, help="graph.arrow")
    parser.add_argument("--schedule", type=Path, required=True, help="schedule.arrow")
    parser.add_argument("--plan", type=Path, required=True, help="plan.json")
    parser.add_argument("--out", type=Path, required=True, help="the package's directory")


def run(options: argparse.Namespace) -> None:
    """Writes the package; where the plan is infeasible, one whose `load` says so."""
    from schemas.errors import ArtifactError
    from schemas.graph import GRAPH, read_graph
    from schemas.plan import read_plan
    from schemas.schedule import SCHEDULE, read_schedule
    from schemas.store import read
    from stages.generate.package import infeasible_package, package, write_directory

    plan = asdict(read_plan(options.plan))
    if plan["verdict"] == "infeasible":
        write_directory(options.out, infeasible_package(plan))
        return
    graph = read_graph(options.graph)
    planned_for = read(options.schedule, SCHEDULE).metadata.get("graph")
    if planned_for and planned_for != read(options.graph, GRAPH).digest:
        raise ArtifactError(f"{options.schedule}: is the schedule of another graph")
    write_directory(options.out, package(graph, read_schedule(options.schedule), plan))
