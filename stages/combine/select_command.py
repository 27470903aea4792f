"""`select`: takes the plan for a budget from a frontier, or from two of other kernels."""

from __future__ import annotations

import argparse
from pathlib import Path

from tightfit.schemas.machine import machine_path
from tightfit.stages.combine.frontier_files import FrontierFiles
from tightfit.stages.combine.select_task import SelectionRequest, SelectionTask
from tightfit.util.budget import NO_BUDGET, parse_plan_budget
from tightfit.util.command_line import LineageEntry, parse_count, print_plan_status
from tightfit.util.errors import ConfigError
from tightfit.util.progress import ProgressPrinter
from tightfit.util.solver_engines import ENGINES, HIGHS_ENGINE
from tightfit.util.strategies import BUDGET_SLOTS

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
    parser.add_argument(
        "--eager-required",
        action="store_true",
        help="both plans have to fit: the budget min is the smallest for both, not for either",
    )
    for prefix, model in (("", "the model"), ("eager-", "the model with eager's kernels")):
        for name, what in FRONTIER_FILE_OPTIONS.items():
            parser.add_argument(f"--{prefix}{name}", type=Path, help=what.format(model))
    parser.add_argument(
        "--machine", type=machine_path, help="description with a link, for strategies that take one"
    )
    parser.add_argument(
        "--budget",
        required=True,
        help="the memory to stay within, such as 8GiB, 145MB or 50%%, or min for the smallest "
        "that a plan is known for",
    )
    parser.add_argument(
        "--joint",
        type=Path,
        nargs="+",
        default=[],
        help="plan.json of the keep-all plan of each sample, of several shapes, within the same "
        "bytes: a percentage is that of the sample for which it is the most",
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
    parser.add_argument(
        "--slots",
        type=parse_count,
        default=BUDGET_SLOTS,
        help=f"memory slots of dynamic programs (default: {BUDGET_SLOTS})",
    )
    parser.add_argument("--out", type=Path, required=True, help="the folder to write into")


def run(options: argparse.Namespace) -> None:
    """Writes the plan, that of eager's kernels apart, too, and prints the status. Raises
    ConfigError where what is given of eager's kernels or of the makings of a frontier is not
    whole."""
    if options.budget != NO_BUDGET:
        parse_plan_budget(options.budget, "--budget")
    plan = _parse_task(options).run(ProgressPrinter())
    print_plan_status(plan.status, plan.message, options)


def lineage_entries(options: argparse.Namespace) -> list[LineageEntry]:
    """What `run` made of what."""
    return _parse_task(options).lineage_entries()


def _parse_task(options: argparse.Namespace) -> SelectionTask:
    eager = _parse_eager_request(options)
    return SelectionTask(
        _parse_request(options), options.out, eager, options.eager_out, options.eager_required
    )


def _parse_request(options: argparse.Namespace, prefix: str = "") -> SelectionRequest:
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
            f"select takes --{words}blocks and --{words}options together, and with them what "
            "else a whole frontier is made of"
        )
    makings = None
    if not missing:
        of_blocks = (blocks, made_options, hierarchy, options.machine)
        makings = FrontierFiles(graph, costs, *of_blocks, options.solver, options.slots)
    wanted = (options.solver, not options.no_search)
    joint = () if prefix else tuple(options.joint)
    return SelectionRequest(graph, costs, frontier, options.budget, makings, *wanted, joint)


def _parse_eager_request(options: argparse.Namespace) -> SelectionRequest | None:
    """What the plan of eager's kernels is chosen from, None where nothing is given."""
    from tightfit.schemas.graph.training_graph import has_fused_kernels

    given = (options.eager_graph, options.eager_costs, options.eager_frontier, options.eager_out)
    made = (options.eager_blocks, options.eager_options, options.eager_hierarchy)
    if all(path is None for path in (*given, *made)):
        return None
    if any(path is None for path in given):
        raise ConfigError(
            "select takes --eager-graph, --eager-costs, --eager-frontier and --eager-out together"
        )
    if has_fused_kernels(options.eager_graph) or not has_fused_kernels(options.graph):
        raise ConfigError("select takes the graph of fused kernels as --graph, eager's apart")
    return _parse_request(options, "eager_")
