"""`select`: takes the plan for a budget from a frontier, or from two of other kernels."""

from __future__ import annotations

import argparse
import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from tightfit.schemas.machine import machine_path
from tightfit.stages.combine.frontier_files import FrontierFiles
from tightfit.util.budget import NO_BUDGET
from tightfit.util.command_line import LineageEntry
from tightfit.util.errors import ConfigError
from tightfit.util.solver_engines import ENGINES, HIGHS_ENGINE, SolverEngine

if TYPE_CHECKING:
    from tightfit.schemas.frontier import Frontier
    from tightfit.schemas.link import HostLink
    from tightfit.schemas.plan import KernelKind, Plan
    from tightfit.schemas.schedule import ScheduleStep
    from tightfit.schemas.sequence import ChainOperation

OUTPUT_FILES = ("sequence.arrow", "schedule.arrow", "plan.json")
FAR_GAP = 0.05
"""The gap from which on a plan that was found from own plans is compared with one that is found
from the whole frontier."""
FRONTIER_FILE_OPTIONS = {
    "blocks": "blocks.arrow of {}, with the options: where nothing near to the bound is found from "
    "a frontier of the strategy's own plans, the whole one is made of them and searched from, too",
    "options": "options.arrow of these blocks",
    "hierarchy": "hierarchy.arrow of {}, for strategies that take it",
}


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
    for prefix, model in (("", "the model"), ("eager-", "the model with eager's kernels")):
        for name, what in FRONTIER_FILE_OPTIONS.items():
            parser.add_argument(f"--{prefix}{name}", type=Path, help=what.format(model))
    parser.add_argument(
        "--machine", type=machine_path, help="description with a link, for strategies that take one"
    )
    parser.add_argument(
        "--budget", required=True, help="the memory to stay within, such as 8GiB, 145MB or 50%%"
    )
    parser.add_argument(
        "--no-search",
        action="store_true",
        help="take the frontier's plan, without looking for a faster one or a closer bound",
    )
    parser.add_argument(
        "--solver",
        choices=ENGINES,
        default=HIGHS_ENGINE,
        help="what solves the integer programs of the step and of its bound",
    )
    parser.add_argument("--out", type=Path, required=True, help="the folder to write into")


@dataclass(frozen=True)
class _SelectedPlan:
    """A plan with what is written of it; `graph` is the digest of its graph."""

    plan: Plan
    sequence: list[ChainOperation]
    steps: list[ScheduleStep]
    graph: str
    link: HostLink | None

    def write(self, folder: Path) -> None:
        """Writes all of it."""
        from tightfit.schemas.plan import write_plan
        from tightfit.schemas.schedule import write_schedule
        from tightfit.schemas.sequence import write_sequence

        write_sequence(folder / OUTPUT_FILES[0], self.sequence)
        write_schedule(folder / OUTPUT_FILES[1], self.steps, self.graph, self.link)
        write_plan(folder / OUTPUT_FILES[2], self.plan)


@dataclass(frozen=True)
class _SelectionRequest:
    """What a plan is chosen from, for a budget: a frontier, and what the whole one is made of where
    it is of the strategy's own plans. Without a `search` it is the frontier's."""

    graph: Path
    costs: Path
    frontier: Path
    makings: FrontierFiles | None
    budget: str
    engine: SolverEngine
    search: bool

    @classmethod
    def of(cls, options: argparse.Namespace, prefix: str = "") -> _SelectionRequest:
        """What options with a prefix name; raises ConfigError where blocks or their options are
        missing."""
        graph, costs, frontier, blocks, made_options, hierarchy = (
            getattr(options, f"{prefix}{name}")
            for name in ("graph", "costs", "frontier", *FRONTIER_FILE_OPTIONS)
        )
        missing = blocks is None or made_options is None
        more = (blocks, made_options, hierarchy, None if prefix else options.machine)
        if missing and any(path is not None for path in more):
            words = prefix.replace("_", "-")
            raise ConfigError(
                f"choose takes --{words}blocks and --{words}options together, and with them what "
                "else a whole frontier is made of"
            )
        makings = None
        if not missing:
            of_blocks = (blocks, made_options, hierarchy, options.machine)
            makings = FrontierFiles(graph, costs, *of_blocks, options.solver)
        wanted = (options.budget, options.solver, not options.no_search)
        return cls(graph, costs, frontier, makings, *wanted)

    @property
    def files(self) -> list[Path]:
        """All that is read."""
        made = self.makings
        more = () if made is None else (made.blocks, made.options, made.hierarchy, made.machine)
        return [self.graph, self.costs, self.frontier, *(path for path in more if path is not None)]

    def chosen(self, total: int | None = None) -> _SelectedPlan:
        """The plan, or that from the whole frontier where this is faster: it is made, if it can
        be, where own plans lead to none, or to one whose gap is above `FAR`. `total` are the bytes
        of the budget where these are another's. Raises ConfigError where the frontier is of another
        graph, ArtifactError where what it is made of cannot be read."""
        from tightfit.schemas.frontier import read_frontier
        from tightfit.schemas.graph.training_graph import GRAPH
        from tightfit.schemas.store import read
        from tightfit.stages.combine.strategies.strategy import load_strategy as strategy_of

        frontier, digest = read_frontier(self.frontier), read(self.graph, GRAPH).digest
        if frontier.graph != digest:
            raise ConfigError(f"{self.frontier}: was made for another graph than {self.graph}")
        strategy_of(frontier.strategy)
        if self.makings is not None:
            self.makings.check()
        found = self._from(frontier, total)
        if self.makings is None or not self.search or _is_near_bound(found.plan):
            return found
        further = self._from(self.makings.frontier(frontier.strategy), total)
        slower = not found.plan.feasible or _predicted_seconds(further.plan) < _predicted_seconds(
            found.plan
        )
        return further if slower else found

    def _from(self, frontier: Frontier, total: int | None) -> _SelectedPlan:
        """The plan of one frontier."""
        from tightfit.schemas.costs import read_costs
        from tightfit.schemas.graph.fused_groups import count_executed_groups
        from tightfit.schemas.graph.training_graph import has_fused_kernels, read_graph
        from tightfit.stages.combine.select_plan import select_plan
        from tightfit.stages.simulate.planning_graph import build_planning_graph
        from tightfit.util.progress import ProgressPrinter

        graph, costs = read_graph(self.graph), read_costs(self.costs)
        problem = build_planning_graph(graph, costs)
        asked = "" if self.budget == NO_BUDGET else f" for {self.budget}"
        report = ProgressPrinter(f"{graph.model}: {frontier.strategy}{asked}", "searches at most")
        given = (frontier, self.budget, self.search, total, self.engine, report)
        plan, point, steps = select_plan(graph, costs, problem, *given)
        groups, compiled = count_executed_groups(graph, (step.action for step in steps))
        kernels: KernelKind = "fused" if has_fused_kernels(self.graph) else "eager"
        plan = replace(plan, kernels=kernels, threads=costs.device.measured_threads)
        if plan.feasible:
            plan = replace(plan, groups=groups, compiled=compiled)
        sequence = [] if point is None else point.sequence
        return _SelectedPlan(plan, sequence, steps, frontier.graph, frontier.link)


def _is_near_bound(plan: Plan) -> bool:
    """Whether a plan is near to its bound, or no budget was asked for."""
    return plan.budget == NO_BUDGET or (
        plan.feasible and plan.gap is not None and plan.gap <= FAR_GAP
    )


def _predicted_seconds(plan: Plan) -> float:
    """The predicted time of a plan, that of an infeasible one being without end."""
    return math.inf if plan.time is None else plan.time


def run(options: argparse.Namespace) -> None:
    """Writes sequence.arrow, schedule.arrow and plan.json, those of eager's plan apart, too, and
    prints the verdict. Raises ConfigError where a frontier is of another graph, or what is given of
    eager's kernels or of the makings of a frontier is not whole."""
    from tightfit.schemas.costs import read_profile_device
    from tightfit.stages.combine.local_search.anneal import anneal_epoch
    from tightfit.stages.combine.select_plan import choose_kernels, competing_plan_of
    from tightfit.util.code_cache import print_compiling_note
    from tightfit.util.command_line import print_verdict

    eager = _eager_request(options)
    asked = _SelectionRequest.of(options)
    if options.budget != NO_BUDGET:
        print_compiling_note(anneal_epoch)
    found = asked.chosen()
    if eager is not None:
        other = eager.chosen(found.plan.budget_total)
        replace(
            other, plan=replace(other.plan, competing_plan=competing_plan_of(found.plan))
        ).write(options.eager_out)
        plan = choose_kernels(found.plan, other.plan)
        found = replace(found if plan.kernels == "fused" else other, plan=plan)
    found.write(options.out)
    if read_profile_device(options.costs).described:
        _forget_measurement(options.out)
    print_verdict(found.plan.status, found.plan.message, options)


def _eager_request(options: argparse.Namespace) -> _SelectionRequest | None:
    """What the plan of eager's kernels is chosen from, None where nothing is given."""
    from tightfit.schemas.graph.training_graph import has_fused_kernels

    given = (options.eager_graph, options.eager_costs, options.eager_frontier, options.eager_out)
    made = (options.eager_blocks, options.eager_options, options.eager_hierarchy)
    if all(path is None for path in (*given, *made)):
        return None
    if any(path is None for path in given):
        raise ConfigError(
            "choose takes --eager-graph, --eager-costs, --eager-frontier and --eager-out together"
        )
    if has_fused_kernels(options.eager_graph) or not has_fused_kernels(options.graph):
        raise ConfigError("choose takes the graph of fused kernels as --graph, eager's apart")
    return _SelectionRequest.of(options, "eager_")


def _forget_measurement(folder: Path) -> None:
    """Removes what was measured of an earlier plan: nothing will measure this one."""
    from tightfit.schemas.lineage import remove_with_lineage

    for name in ("measurement.arrow", "memory_timeline.arrow"):
        remove_with_lineage(folder / name)


def lineage_entries(options: argparse.Namespace) -> list[LineageEntry]:
    """What `run` made of what."""
    outputs = [options.out / name for name in OUTPUT_FILES]
    read = _SelectionRequest.of(options).files
    if eager := _eager_request(options):
        outputs += [options.eager_out / name for name in OUTPUT_FILES]
        read = list(dict.fromkeys([*read, *eager.files]))
    more = {"search": False} if options.no_search else {}
    settings = {"budget": options.budget, "solver": options.solver, **more}
    return [LineageEntry(outputs, read, settings)]
