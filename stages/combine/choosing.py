"""`choose`: takes the plan for a budget from a frontier, or from two of other kernels."""

from __future__ import annotations

import argparse
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from schemas.budget import NO_BUDGET
from schemas.derived import Derived
from schemas.engines import ENGINES, HIGHS, Engine
from schemas.errors import ConfigError

if TYPE_CHECKING:
    from schemas.link import HostLink
    from schemas.plan import Plan
    from schemas.schedule import Step
    from schemas.sequence import Operation

OUTPUTS = ("sequence.arrow", "schedule.arrow", "plan.json")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's options."""
    parser.add_argument("--graph", type=Path, required=True, help="graph.arrow of the model")
    parser.add_argument("--costs", type=Path, required=True, help="costs.arrow on the device")
    parser.add_argument(
        "--frontier", type=Path, required=True, help="frontier.arrow to choose from"
    )
    for name, what in (
        (
            "graph",
            "graph.arrow of the model with eager's kernels, where those of --graph are fused",
        ),
        ("costs", "costs.arrow of that graph"),
        ("frontier", "frontier.arrow of that graph: its plan is taken where it is the better one"),
        ("out", "the folder to write that plan into, whichever is taken"),
    ):
        parser.add_argument(f"--eager-{name}", type=Path, help=what)
    parser.add_argument(
        "--budget", required=True, help="the memory to stay within, such as 8GiB, 145MB or 50%%"
    )
    parser.add_argument(
        "--no-search",
        action="store_true",
        help="take the frontier's plan, without looking for a faster one or a closer bound",
    )
    parser.add_argument(
        "--engine",
        choices=ENGINES,
        default=HIGHS,
        help="what solves the integer programs of the step and of its bound",
    )
    parser.add_argument("--out", type=Path, required=True, help="the folder to write into")


@dataclass(frozen=True)
class _Chosen:
    """A plan with what is written of it; `graph` is the digest of its graph."""

    plan: Plan
    sequence: list[Operation]
    steps: list[Step]
    graph: str
    link: HostLink | None

    def write(self, folder: Path) -> None:
        """Writes all of it."""
        from schemas.plan import write_plan
        from schemas.schedule import write_schedule
        from schemas.sequence import write_sequence

        write_sequence(folder / OUTPUTS[0], self.sequence)
        write_schedule(folder / OUTPUTS[1], self.steps, self.graph, self.link)
        write_plan(folder / OUTPUTS[2], self.plan)


def run(options: argparse.Namespace) -> None:
    """Writes sequence.arrow, schedule.arrow and plan.json, those of eager's plan apart, too, and
    prints the verdict. Raises ConfigError where a frontier is of another graph, or what is given of
    eager's kernels is not whole."""
    from schemas.compiled import tell_compiling
    from schemas.costs import read_device
    from schemas.words import tell
    from stages.combine.polish.anneal import cool
    from stages.combine.rivals import rival_of, taken

    eager = _eager(options)
    if options.budget != NO_BUDGET:
        tell_compiling(cool)
    search = not options.no_search
    files = (options.graph, options.costs, options.frontier)
    found = _chosen(*files, options.budget, options.engine, search)
    if eager:
        graph, costs, frontier, out = eager
        total = found.plan.budget_total
        other = _chosen(graph, costs, frontier, options.budget, options.engine, search, total)
        replace(other, plan=replace(other.plan, rival=rival_of(found.plan))).write(out)
        plan = taken(found.plan, other.plan)
        found = replace(found if plan.kernels == "fused" else other, plan=plan)
    found.write(options.out)
    if read_device(options.costs).described:
        _forget_measurement(options.out)
    tell(found.plan.verdict, found.plan.sentence, options)


def _eager(options: argparse.Namespace) -> tuple[Path, Path, Path, Path] | None:
    """Graph, costs, frontier and folder of eager's kernels, None where none are given."""
    from schemas.graph import is_fused

    given = (options.eager_graph, options.eager_costs, options.eager_frontier, options.eager_out)
    if all(path is None for path in given):
        return None
    if any(path is None for path in given):
        raise ConfigError(
            "choose takes --eager-graph, --eager-costs, --eager-frontier and --eager-out together"
        )
    if is_fused(options.eager_graph) or not is_fused(options.graph):
        raise ConfigError("choose takes the graph of fused kernels as --graph, eager's apart")
    return given


def _chosen(
    graph_path: Path,
    costs_path: Path,
    frontier_path: Path,
    budget: str,
    engine: Engine,
    search: bool,
    total: int | None = None,
) -> _Chosen:
    """The plan of one frontier; `total` are the bytes of the budget where these are another's."""
    from schemas.costs import read_costs
    from schemas.frontier import read_frontier
    from schemas.graph import GRAPH, is_fused, read_graph
    from schemas.groups import run_groups
    from schemas.store import read
    from schemas.telling import Printing
    from stages.combine.choose import choose
    from stages.replay.condense import condense

    graph, costs = read_graph(graph_path), read_costs(costs_path)
    frontier, digest = read_frontier(frontier_path), read(graph_path, GRAPH).digest
    if frontier.graph != digest:
        raise ConfigError(f"{frontier_path}: was made for another graph than {graph_path}")
    problem = condense(graph, costs)
    asked = "" if budget == NO_BUDGET else f" for {budget}"
    report = Printing(f"{graph.model}: {frontier.strategy}{asked}", "searches at most")
    plan, point, steps = choose(
        graph, costs, problem, frontier, budget, search, total, engine, report
    )
    groups, compiled = run_groups(graph, (step.action for step in steps))
    plan = replace(plan, kernels="fused" if is_fused(graph_path) else "eager")
    if plan.feasible:
        plan = replace(plan, groups=groups, compiled=compiled)
    sequence = [] if point is None else point.sequence
    return _Chosen(plan, sequence, steps, digest, frontier.link)


def _forget_measurement(folder: Path) -> None:
    """Removes what was measured of an earlier plan: nothing will measure this one."""
    from schemas.lineage import remove

    for name in ("measurement.arrow", "line.arrow"):
        remove(folder / name)


def derived(options: argparse.Namespace) -> list[Derived]:
    """What `run` made of what."""
    outputs = [options.out / name for name in OUTPUTS]
    read = [options.graph, options.costs, options.frontier]
    if eager := _eager(options):
        outputs += [eager[3] / name for name in OUTPUTS]
        read += eager[:3]
    more = {"search": False} if options.no_search else {}
    settings = {"budget": options.budget, "engine": options.engine, **more}
    return [Derived(outputs, read, settings)]
