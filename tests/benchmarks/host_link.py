"""Steps of models on a described H100 with a link to the host: what a share of the activations
takes, with the link and without, by prediction. `offmate` is the plan of that strategy as it is
given, and what the search finds when it starts from its plans, too. Bytes are those that are
requested."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.stages.solve.blocks import solve_block
from tightfit.__main__ import main
from tightfit.schemas.actions import Action
from tightfit.schemas.blocks import read_blocks
from tightfit.schemas.costs import read_costs
from tightfit.schemas.frontier import read_frontier
from tightfit.schemas.graph.planning_graph import PlanningGraph
from tightfit.schemas.graph.training_graph import read_graph
from tightfit.schemas.link import HostLink
from tightfit.stages.combine.activation_offload.bound import TransferBoundSolver
from tightfit.stages.combine.activation_offload.placement import PlacedTransfers, offloadable_values
from tightfit.stages.combine.activation_offload.search import TransferSearch
from tightfit.stages.combine.lowering.schedule import ScheduleLowering
from tightfit.stages.combine.memory_budget import BudgetAccounting
from tightfit.stages.combine.offmate.planner import OffmatePlan, OffmatePlanner
from tightfit.stages.combine.refine_plan import PointSimulator, refine_point
from tightfit.stages.simulate.planning_graph import build_planning_graph
from tightfit.stages.simulate.simulate import simulate
from tightfit.stages.solve.search import OptionGrid


@dataclass(frozen=True)
class LinkedCase:
    """A model with the arguments of its factory."""

    title: str
    factory: str
    arguments: dict[str, Any]


CASES = (
    LinkedCase(
        "ResNet-101, 64 images of 224",
        "data.models:resnet",
        {"name": "resnet101", "batch": 64, "size": 224},
    ),
    LinkedCase(
        "GPT-2, 12 layers, 8 x 1024",
        "data.models:gpt2",
        {"layers": 12, "width": 768, "heads": 12, "batch": 8, "tokens": 1024, "vocabulary": 50257},
    ),
)
BANDWIDTHS = (25e9, 50e9)
LATENCY = 1e-5
SHARES = (0.2, 0.3, 0.5)
NEAR = (1.0, 1.02, 1.04, 1.06, 1.08, 1.1, 1.15)
"""For how many times the budget plans are looked for to start from."""
HEAD = (
    "| model | activations | bandwidth | time without | time | bound | sent | planned in "
    "| offmate, given | and searched |\n"
    "|---|---|---|---|---|---|---|---|---|---|"
)


def rows_of_linked(folder: Path) -> Iterator[str]:
    """A row in Markdown for each model, share of its activations and bandwidth."""
    for number, case in enumerate(CASES):
        place = folder / str(number)
        _prepare(case, place)
        yield from _rows(case, place)


def _prepare(case: LinkedCase, place: Path) -> None:
    """Graph, costs and the frontier of `auto` without a link."""
    files = ["--graph", place / "graph.arrow", "--costs", place / "costs.arrow"]
    blocks, options = place / "blocks.arrow", place / "options.arrow"
    source = ["--factory", case.factory, "--arguments", json.dumps(case.arguments)]
    described = ["--source", "roofline", "--machine", "h100"]
    made = ["--blocks", blocks, "--options", options, "--strategy", "auto"]
    store = ["--store", place / "store", "--solver", "none"]
    for words in (
        ["trace", *source, "--name", case.title, "--out", files[1]],
        ["profile", *files[:2], *described, "--out", files[3]],
        ["partition", *files, "--out", blocks],
        ["solve", "--blocks", blocks, *store, "--out", options],
        ["combine", *files, *made, "--workers", "2", "--out", place / "frontier.arrow"],
    ):
        if main([str(word) for word in words]):
            raise SystemExit(f"{words[0]} failed")


def _rows(case: LinkedCase, place: Path) -> Iterator[str]:
    graph, costs = read_graph(place / "graph.arrow"), read_costs(place / "costs.arrow")
    found, problem = read_frontier(place / "frontier.arrow"), build_planning_graph(graph, costs)
    in_all = BudgetAccounting.of_step(graph, costs, problem)
    opener, everything = ScheduleLowering(graph, problem), found.keep_all_seconds
    kept = in_all.fixed.gradients + in_all.fixed.outputs
    for share in SHARES:
        budget = int(kept + share * (found.keep_all_peak - kept))
        without = refine_point(PointSimulator(graph, costs, opener), found, budget, [])
        start = without or found.points[-1]
        known = (start, found.within(budget) or found.points[-1])
        starts = [[opener.positions[op] for op in point.executions] for point in known]
        for bandwidth in BANDWIDTHS:
            link = HostLink(bandwidth, LATENCY, shared=False, device=graph.device)
            begun = time.process_time()
            linker = TransferSearch(problem, link, offloadable_values(graph, problem))
            placed = linker.plan(budget, starts)
            took = time.process_time() - begun
            planner = _planner(place, problem, link, linker.placer.leaving)
            given = planner.within(budget)
            searched = linker.plan(budget, starts, linked=_near(planner, budget))
            seconds, sent = 0.0 if without is None else without.seconds, 0
            if placed is not None:
                steps = opener.of_actions(linker.placer.actions(placed), True, placed.ceiling)
                played = simulate(graph, costs, steps, link=link)
                assert played.peak <= budget
                if without is None or played.seconds < seconds:
                    seconds = played.seconds
                    sent = played.transfers.offloaded_bytes if played.transfers else 0
            bound = (
                TransferBoundSolver(problem, link, offloadable_values(graph, problem))
                .bound(budget)
                .seconds
            )
            shown = "none" if without is None else f"{without.seconds / everything:.3f}"
            yield (
                f"| {case.title} | {share:.0%} | {bandwidth / 1e9:g} GB/s | {shown} "
                f"| {seconds / everything:.3f} | {bound / everything:.3f} | {sent / 1e9:.2f} GB "
                f"| {took:.0f} s | {_shown(given.placed if given else None, everything)} "
                f"| {_shown(searched, everything)} |"
            )


def _shown(placed: PlacedTransfers | None, everything: float) -> str:
    return "none" if placed is None else f"{placed.seconds / everything:.3f}"


def _planner(
    place: Path, problem: PlanningGraph, link: HostLink, values: Mapping[int, int]
) -> OffmatePlanner:
    """OffMate's planner, with options that need no solver."""
    blocks = read_blocks(place / "blocks.arrow")
    options = {
        digest: solve_block(digest, block, "none", OptionGrid(), link)
        for digest, block in blocks.distinct.items()
    }
    return OffmatePlanner(problem, blocks, options, link, values)


def _near(planner: OffmatePlanner, budget: int) -> list[list[Action]]:
    """The plans for the budget and for a little more, at most two."""
    found: list[OffmatePlan] = []
    for more in NEAR:
        plan = planner.within(int(budget * more)) if len(found) < 2 else None
        found += [] if plan is None else [plan]
    return [planner.placer.actions(plan.placed) for plan in found]
