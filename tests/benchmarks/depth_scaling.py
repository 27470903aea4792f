"""How planning grows with depth: transformers of many layers on a described device."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.benchmarks.stage_commands import run_stage
from tightfit.schemas.costs import Costs, read_costs
from tightfit.schemas.frontier import Frontier, read_frontier
from tightfit.schemas.graph.training_graph import Graph, read_graph
from tightfit.schemas.plan import read_plan
from tightfit.stages.combine.bounds.lower_bounds import prove_time_lower_bound
from tightfit.stages.combine.lowering.schedule import ScheduleLowering
from tightfit.stages.combine.memory_budget import baseline_bytes
from tightfit.stages.combine.refine_plan import PointSimulator, refine_point
from tightfit.stages.simulate.planning_graph import build_planning_graph

DEVICE = {
    "artifact": "tightfit.machine/1",
    "name": "h100",
    "devices": [
        {
            "name": "cuda:0",
            "memory": 80_000_000_000,
            "flops": 5e14,
            "bandwidth": 2.5e12,
            "latency": 4e-6,
        }
    ],
}
"""What the design's prototype took an H100 for."""
SHARES = (0.5, 0.3, 0.2)
"""Of what keeping everything takes beyond what stays to the end of the step."""
BUDGETS = (*(f"{share:.0%}" for share in SHARES), "least")
HEAD = (
    "| layers | dropout | nodes | frontier, CPU s | points | "
    + " | ".join(f"{budget}: time, bound, gap, CPU s" for budget in BUDGETS)
    + " | "
    + " | ".join(f"{share:.0%} requested: time, gap, CPU s" for share in SHARES)
    + " |\n|"
    + "---|" * (5 + len(BUDGETS) + len(SHARES))
)


@dataclass(frozen=True)
class Deep:
    """GPT-2 with so many layers: `width` as its published sizes have it, 8 x 1024 tokens."""

    layers: int
    dropout: float = 0.0

    @property
    def arguments(self) -> dict[str, object]:
        """The arguments of the factory."""
        width, heads = (1600, 25) if self.layers == 48 else (1024, 16)
        sizes = {"width": width, "heads": heads, "vocabulary": 50257, "batch": 8, "tokens": 1024}
        return {"layers": self.layers, "dropout": self.dropout, **sizes}


DEPTHS = (Deep(6), Deep(12), Deep(24), Deep(24, 0.1), Deep(48), Deep(96))


def row_of(deep: Deep, folder: Path) -> str:
    """A row of the table in Markdown: CPU seconds of commands of one thread, times as a ratio to
    that of keeping everything; the least budget is the smallest known to work."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "device.json").write_text(json.dumps(DEVICE))
    for stage in _stages(deep, folder):
        seconds = run_stage(*stage)
    graph, frontier = read_graph(folder / "graph.arrow"), read_frontier(folder / "frontier.arrow")
    stays = _stays(graph, read_costs(folder / "costs.arrow"))
    before, room = baseline_bytes(graph).bytes_before_step, frontier.keep_all_peak - stays
    budgets = [before + stays + int(share * room) for share in SHARES]
    cells = [_cell(folder, budget) for budget in (*budgets, _least(folder))]
    cells += [_requested(folder, frontier, stays + int(share * room)) for share in SHARES]
    count = sum(not graph.is_view(op) for op in graph.ops)
    told = [deep.layers, deep.dropout, count, f"{seconds:.1f}", len(frontier.points), *cells]
    return "| " + " | ".join(map(str, told)) + " |"


def rows_of_depths(folder: Path) -> Iterator[str]:
    """The rows of all depths, the shallow ones first."""
    for deep in DEPTHS:
        yield row_of(deep, folder / f"deep{deep.layers}-{deep.dropout}")


def _stages(deep: Deep, folder: Path) -> Iterator[list[str | Path]]:
    """The commands up to the frontier, which is the last."""
    arguments = json.dumps(deep.arguments)
    factory = ["--factory", "data.models:gpt2", "--arguments", arguments, "--name", folder.name]
    described: list[str | Path] = ["--source", "roofline", "--machine", folder / "device.json"]
    blocks: list[str | Path] = ["--blocks", folder / "blocks.arrow"]
    options, given = folder / "options.arrow", _given(folder)
    yield ["trace", *factory, "--out", folder / "graph.arrow"]
    yield ["profile", *given[:2], *described, "--out", folder / "costs.arrow"]
    yield ["partition", *given, "--out", folder / "blocks.arrow"]
    yield ["solve", *blocks, "--store", folder / "store", "--solver", "none", "--out", options]
    made = [*given, *blocks, "--options", options]
    yield ["combine", *made, "--strategy", "auto", "--out", folder / "frontier.arrow"]


def _given(folder: Path) -> list[str | Path]:
    return ["--graph", folder / "graph.arrow", "--costs", folder / "costs.arrow"]


def _stays(graph: Graph, costs: Costs) -> int:
    """The bytes that stay to the end of the step once they are made."""
    return sum(s.bytes for s in build_planning_graph(graph, costs).storages if s.stays)


def _requested(folder: Path, frontier: Frontier, budget: int) -> str:
    """The figures of a step within requested bytes, as bounds count them."""
    graph, costs = read_graph(folder / "graph.arrow"), read_costs(folder / "costs.arrow")
    problem = build_planning_graph(graph, costs)
    before = time.process_time()
    within = frontier.within(budget)
    known = math.inf if within is None else within.seconds
    proven = prove_time_lower_bound(graph, costs, problem, budget, known=known)
    player = PointSimulator(graph, costs, ScheduleLowering(graph, problem))
    point = refine_point(player, frontier, budget, proven.sequences, least=proven.seconds)
    seconds = time.process_time() - before
    if point is None:
        return "infeasible"
    ratio = point.seconds / frontier.keep_all_seconds
    return f"{ratio:.4f}, {1 - proven.seconds / point.seconds:.2%}, {seconds:.1f}"


def _least(folder: Path) -> int:
    """The smallest budget known to work, in bytes that the allocator reserves."""
    given = ["--frontier", folder / "frontier.arrow", *_given(folder)]
    run_stage("select", *given, "--budget", "1B", "--out", folder / "least")
    return read_plan(folder / "least" / "plan.json").smallest_budget or 0


def _cell(folder: Path, budget: int) -> str:
    """The figures of a budget in bytes."""
    out = folder / f"plan-{budget}"
    given = ["--frontier", folder / "frontier.arrow", *_given(folder)]
    seconds = run_stage("select", *given, "--budget", str(budget), "--out", out)
    plan = read_plan(out / "plan.json")
    if plan.time is None or plan.lower_bound is None:
        return plan.status
    ratio, bound = plan.time / plan.keep_all.time, plan.lower_bound / plan.keep_all.time
    return f"{ratio:.4f}, {bound:.4f}, {1 - bound / ratio:.2%}, {seconds:.1f}"
