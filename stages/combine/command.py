"""`combine`: makes the frontier of a strategy."""

from __future__ import annotations

import argparse
from pathlib import Path

from tightfit.schemas.machine import machine_path
from tightfit.stages.combine.frontier_files import FrontierFiles
from tightfit.stages.combine.frontier_task import FrontierTask
from tightfit.util.budget import FRONTIER_BUDGETS
from tightfit.util.command_line import LineageEntry, parse_count
from tightfit.util.progress import ProgressPrinter
from tightfit.util.solver_engines import ENGINES, HIGHS_ENGINE
from tightfit.util.strategies import BUDGET_SLOTS


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's options."""
    parser.add_argument("--graph", type=Path, required=True, help="graph.arrow of the model")
    parser.add_argument("--costs", type=Path, required=True, help="costs.arrow on the device")
    parser.add_argument("--blocks", type=Path, required=True, help="blocks.arrow of the model")
    parser.add_argument("--options", type=Path, required=True, help="options.arrow of the blocks")
    parser.add_argument(
        "--hierarchy", type=Path, help="hierarchy.arrow of the model, for strategies that take it"
    )
    parser.add_argument(
        "--machine", type=machine_path, help="description with a link, for strategies that take one"
    )
    parser.add_argument("--strategy", required=True, help="how to plan, by name")
    parser.add_argument(
        "--workers", type=parse_count, default=1, help="threads of the local search"
    )
    parser.add_argument(
        "--budgets",
        type=parse_count,
        default=FRONTIER_BUDGETS,
        help=f"how many budgets to plan for at most (default: {FRONTIER_BUDGETS})",
    )
    parser.add_argument(
        "--no-local-search",
        action="store_true",
        help="only the strategy's own plans, without local search",
    )
    parser.add_argument(
        "--solver",
        choices=ENGINES,
        default=HIGHS_ENGINE,
        help="what solves the integer programs of the step and of its bound",
    )
    parser.add_argument(
        "--slots",
        type=parse_count,
        default=BUDGET_SLOTS,
        help=f"memory slots of dynamic programs (default: {BUDGET_SLOTS})",
    )
    parser.add_argument("--out", type=Path, required=True, help="the frontier to write")


def run(options: argparse.Namespace) -> None:
    """Writes the frontier and prints the progress."""
    _parse_task(options).run(ProgressPrinter())


def lineage_entries(options: argparse.Namespace) -> list[LineageEntry]:
    """What `run` made of what."""
    return _parse_task(options).lineage_entries()


def _parse_task(options: argparse.Namespace) -> FrontierTask:
    files = (options.graph, options.costs, options.blocks, options.options, options.hierarchy)
    return FrontierTask(
        FrontierFiles(*files, options.machine, options.solver, options.slots),
        options.strategy,
        options.out,
        not options.no_local_search,
        options.workers,
        options.budgets,
    )
