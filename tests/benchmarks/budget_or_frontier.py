"""The asked budget first, or the frontier: what both ways to a plan take, and what they find."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.benchmarks.device_spec import run_apart
from tightfit.schemas.plan import Plan, read_plan

BUDGETS = ("50%", "40%", "30%", "25%", "20%")
HEAD = (
    "| | budget | asked first: time, gap, CPU s | frontier first: time, gap, CPU s |\n"
    "|---|---|---|---|"
)
GPT2 = {"layers": 6, "width": 384, "heads": 6, "vocabulary": 5000, "batch": 4, "tokens": 256}
SMALL = {**GPT2, "layers": 12, "width": 768, "heads": 12, "vocabulary": 50257, "batch": 8}


@dataclass(frozen=True)
class Asked:
    """A model with the described machine that it is planned for."""

    title: str
    factory: str
    arguments: dict[str, Any]
    machine: str


CASES = (
    Asked("GPT-2, RTX 3060", "data.models:gpt2", GPT2, "rtx3060"),
    Asked("ResNet-50, H100", "data.models:resnet50", {"batch": 8, "size": 224}, "h100"),
    Asked("GPT-2 small, RTX 4090", "data.models:gpt2", {**SMALL, "tokens": 1024}, "rtx4090"),
)


def rows_of_asked(folder: Path) -> Iterator[str]:
    """Rows of Markdown as they come: a plan's predicted time beside that of keeping everything, its
    gap, and the CPU seconds of the commands from the options of the blocks to the plan."""
    for number, case in enumerate(CASES):
        place = folder / str(number)
        place.mkdir(parents=True, exist_ok=True)
        _solve(case, place)
        ways = {"given": ["--no-local-search"], "frontier": []}
        before = {name: _combined(place, name, more) for name, more in ways.items()}
        for budget in BUDGETS:
            found = [_chosen(place, name, budget, seconds) for name, seconds in before.items()]
            yield f"| {case.title} | {budget} | {' | '.join(found)} |"


def _files(place: Path) -> list[str]:
    return ["--graph", f"{place}/graph.arrow", "--costs", f"{place}/costs.arrow"]


def _made(place: Path) -> list[str]:
    return ["--blocks", f"{place}/blocks.arrow", "--options", f"{place}/options.arrow"]


def _solve(case: Asked, place: Path) -> None:
    """Puts graph, costs, blocks and their options into a folder."""
    graph, costs = _files(place)[:2], _files(place)[2:]
    source = ["--factory", case.factory, "--arguments", json.dumps(case.arguments)]
    described = ["--source", "roofline", "--machine", case.machine]
    blocks, options = _made(place)[:2], _made(place)[3]
    run_apart("trace", [*source, "--name", "bench", "--out", graph[1]])
    run_apart("profile", [*graph, *described, "--out", costs[1]])
    run_apart("partition", [*graph, *costs, "--out", blocks[1]])
    run_apart("solve", [*blocks, "--store", f"{place}/store", "--solver", "none", "--out", options])


def _combined(place: Path, name: str, more: list[str]) -> float:
    """The CPU seconds that a frontier takes."""
    out = ["--strategy", "auto", *more, "--out", f"{place}/{name}.arrow"]
    return run_apart("combine", [*_files(place), *_made(place), *out]).cpu


def _chosen(place: Path, name: str, budget: str, before: float) -> str:
    """What one way finds for a budget, and the CPU seconds of it with those `before`."""
    out = place / f"{name}-{budget.rstrip('%')}"
    frontier = ["--frontier", f"{place}/{name}.arrow", "--budget", budget, "--out", str(out)]
    makings = _made(place) if name == "given" else []
    taken = run_apart("select", [*_files(place), *frontier, *makings])
    return _said(read_plan(out / "plan.json"), before + taken.cpu)


def _said(plan: Plan, seconds: float) -> str:
    """A plan in a cell of the table."""
    if plan.time is None or plan.gap is None or plan.keep_all.time is None:
        return f"{plan.status}, {seconds:.1f}"
    return f"{plan.time / plan.keep_all.time:.4f}, {plan.gap:.2%}, {seconds:.1f}"
