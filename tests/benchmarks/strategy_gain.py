"""What each strategy is worth by depth: its own plans, and what local search makes of them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.benchmarks.stage_commands import run_stage
from tightfit.schemas.costs import read_costs
from tightfit.schemas.frontier import Frontier, read_frontier
from tightfit.schemas.graph.planning_graph import PlanningGraph
from tightfit.schemas.graph.training_graph import read_graph
from tightfit.stages.simulate.planning_graph import build_planning_graph
from tightfit.util.strategies import HIERARCHY_LIMITS

SHARES = (0.7, 0.5, 0.3, 0.2, 0.1)
"""Of what keeping everything takes beyond what stays to the end of the step."""
DEPTHS = (6, 24, 48)
STRATEGIES = ("rotor", "rockmate", "tw_remat", "hiremate")
MACHINE = "schemas/machines/rtx3060.json"
HEAD = (
    "| GPT-2, 384 wide | strategy | own plans | smallest | CPU s | searched | smallest | CPU s |\n"
    "|---|---|---|---|---|---|---|---|"
)


def rows_of_worth(folder: Path) -> Iterator[str]:
    """The rows of all depths and strategies."""
    for layers in DEPTHS:
        place = folder / f"worth{layers}"
        place.mkdir(parents=True, exist_ok=True)
        _prepare(layers, place)
        problem = build_planning_graph(
            read_graph(place / "graph.arrow"), read_costs(place / "costs.arrow")
        )
        for strategy in STRATEGIES:
            cells = [
                cell
                for flags in (["--no-local-search"], [])
                for cell in _frontier(place, strategy, problem, flags)
            ]
            yield f"| {layers} layers | `{strategy}` | " + " | ".join(cells) + " |"


def _prepare(layers: int, place: Path) -> None:
    """All stages up to the options of blocks."""
    sizes = {"width": 384, "heads": 6, "vocabulary": 5000, "batch": 4, "tokens": 256}
    arguments = json.dumps({"layers": layers, **sizes})
    factory = ["--factory", "data.models:gpt2", "--arguments", arguments, "--name", place.name]
    run_stage("trace", *factory, "--out", place / "graph.arrow")
    graph: list[str | Path] = ["--graph", place / "graph.arrow"]
    described = ["--source", "roofline", "--machine", MACHINE]
    run_stage("profile", *graph, *described, "--out", place / "costs.arrow")
    given: list[str | Path] = [*graph, "--costs", place / "costs.arrow"]
    run_stage("partition", *given, "--out", place / "blocks.arrow")
    limits = [word for name, most in HIERARCHY_LIMITS.items() for word in (f"--{name}", str(most))]
    run_stage("partition", *given, "--hierarchy", place / "hierarchy.arrow", *limits)
    blocks: list[str | Path] = ["--blocks", place / "blocks.arrow", "--store", place / "store"]
    run_stage("solve", *blocks, "--solver", "highs", "--out", place / "options.arrow")


def _frontier(
    place: Path, strategy: str, problem: PlanningGraph, flags: Sequence[str]
) -> tuple[str, str, str]:
    """Times as a share of that of keeping everything, the smallest peak in MB, and CPU seconds."""
    out = place / f"{strategy}{''.join(flags)}.arrow"
    read: list[str | Path] = [
        word
        for name in ("graph", "costs", "blocks", "options", "hierarchy")
        for word in (f"--{name}", place / f"{name}.arrow")
    ]
    seconds = run_stage("combine", *read, "--strategy", strategy, *flags, "--out", out)
    frontier = read_frontier(out)
    times = ", ".join(_time(frontier, problem, share) for share in SHARES)
    return times, f"{frontier.points[-1].peak / 1e6:.2f}", f"{seconds:.0f}"


def _time(frontier: Frontier, problem: PlanningGraph, share: float) -> str:
    stays = sum(storage.bytes for storage in problem.storages if storage.stays)
    point = frontier.within(stays + int(share * (frontier.keep_all_peak - stays)))
    return "-" if point is None else f"{point.seconds / frontier.keep_all_seconds:.4f}"
