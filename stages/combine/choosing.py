"""`choose`: takes the plan for a budget from a frontier."""

from __future__ import annotations

import argparse
from pathlib import Path

from schemas.budget import NO_BUDGET
from schemas.derived import Derived
from schemas.errors import ConfigError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's options."""
    parser.add_argument("--graph", type=Path, required=True, help="graph.arrow of the model")
    parser.add_argument("--costs", type=Path, required=True, help="costs.arrow on the device")
    parser.add_argument(
        "--frontier", type=Path, required=True, help="frontier.arrow to choose from"
    )
    parser.add_argument(
        "--budget", required=True, help="the memory to stay within, such as 8GiB, 145MB or 50%%"
    )
    parser.add_argument(
        "--no-search",
        action="store_true",
        help="take the frontier's plan, without looking for a faster one or a closer bound",
    )
    parser.add_argument("--out", type=Path, required=True, help="the folder to write into")


def run(options: argparse.Namespace) -> None:
    """Writes sequence.arrow, schedule.arrow and plan.json. Raises ConfigError where the frontier is
    of another graph."""
    from schemas.compiled import tell_compiling
    from schemas.costs import read_costs
    from schemas.frontier import read_frontier
    from schemas.graph import GRAPH, read_graph
    from schemas.plan import write_plan
    from schemas.schedule import write_schedule
    from schemas.sequence import write_sequence
    from schemas.store import read
    from stages.combine.choose import choose
    from stages.combine.polish.anneal import cool
    from stages.replay.condense import condense

    graph, costs = read_graph(options.graph), read_costs(options.costs)
    frontier, digest = read_frontier(options.frontier), read(options.graph, GRAPH).digest
    if frontier.graph != digest:
        raise ConfigError(f"{options.frontier}: was made for another graph than {options.graph}")
    if options.budget != NO_BUDGET:
        tell_compiling(cool)
    plan, point, steps = choose(
        graph, costs, condense(graph, costs), frontier, options.budget, not options.no_search
    )
    write_sequence(options.out / "sequence.arrow", [] if point is None else point.sequence)
    write_schedule(options.out / "schedule.arrow", steps, digest, frontier.link)
    write_plan(options.out / "plan.json", plan)
    if costs.device.described:
        _forget_measurement(options.out)


def _forget_measurement(folder: Path) -> None:
    """Removes what was measured of an earlier plan: nothing will measure this one."""
    for name in ("measurement.arrow", "line.arrow"):
        (folder / name).unlink(missing_ok=True)


def derived(options: argparse.Namespace) -> list[Derived]:
    """What `run` made of what."""
    outputs = [options.out / name for name in ("sequence.arrow", "schedule.arrow", "plan.json")]
    read = [options.graph, options.costs, options.frontier]
    more = {"search": False} if options.no_search else {}
    return [Derived(outputs, read, {"budget": options.budget, **more})]
