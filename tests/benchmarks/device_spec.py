"""From nothing to a plan for a device that is not here: time and memory of each stage."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from tightfit.schemas.plan import read_plan


@dataclass(frozen=True)
class Described:
    """A model of a published size, planned for a budget on a machine of `schemas/machines`."""

    title: str
    factory: str
    machine: str
    budget: str


CASES = (
    Described("GPT-2 XL, 8 x 1024", "data.large_models:gpt2_xl", "h100", "50GB"),
    Described("Llama 3 8B, 8 x 4096", "data.large_models:llama3_8b", "h100", "80GB"),
)


GIVEN = ("--graph", "graph.arrow", "--costs", "costs.arrow")
BLOCKS = ("--blocks", "blocks.arrow")
MADE = (*GIVEN, *BLOCKS, "--options", "options.arrow", "--strategy", "auto")


@dataclass(frozen=True)
class Taken:
    """What a command took: wall-clock seconds, CPU seconds, bytes resident at its peak."""

    stage: str
    wall: float
    cpu: float
    memory: int


def table_of_described(folder: Path) -> Iterator[str]:
    """Lines of Markdown as they come: a row a stage, the sum of all, the frontier that follows, and
    the plan."""
    for case in CASES:
        place = folder / case.factory.partition(":")[2]
        place.mkdir(parents=True, exist_ok=True)
        yield f"\n{case.title}, in {case.budget} of {case.machine}:\n"
        yield "| stage | wall s | CPU s | resident MB |\n|---|---|---|---|"
        taken = []
        for stage, words in _stages(case, place):
            taken.append(run_apart(stage, words))
            yield _row(taken[-1])
        wall, cpu = sum(one.wall for one in taken), sum(one.cpu for one in taken)
        yield _row(Taken("to the plan", wall, cpu, max(one.memory for one in taken)))
        yield _row(replace(run_apart("combine", _frontier(place)), stage="frontier, after it"))
        plan = read_plan(place / "plan/plan.json")
        yield f"\n{plan.message}\n"


def _stages(case: Described, place: Path) -> Iterator[tuple[str, list[str]]]:
    """The commands from the factory to the package for one budget, as `tightfit.plan` chooses their
    settings: the plan is searched for from the strategy's own."""
    described = ["--source", "roofline", "--machine", case.machine]
    chosen = ["--schedule", "plan/schedule.arrow", "--plan", "plan/plan.json"]
    commands = {
        "trace": ["--factory", case.factory, "--name", place.name, "--out", "graph.arrow"],
        "profile": [*GIVEN[:2], *described, "--out", "costs.arrow"],
        "partition": [*GIVEN, "--out", "blocks.arrow"],
        "solve": [*BLOCKS, "--store", "store", "--solver", "none", "--out", "options.arrow"],
        "combine": [*MADE, "--no-local-search", "--out", "own.arrow"],
        "select": [*GIVEN, "--frontier", "own.arrow", "--budget", case.budget],
        "generate": [*GIVEN[:2], *chosen, "--out", "plan/module"],
    }
    commands["select"] += ["--out", "plan"]
    yield from ((stage, _below(place, words)) for stage, words in commands.items())


def _frontier(place: Path) -> list[str]:
    """The command that makes the plans for all budgets."""
    return _below(place, [*MADE, "--workers", "2", "--out", "frontier.arrow"])


def _below(place: Path, words: list[str]) -> list[str]:
    """The words of a command with its files in a folder."""
    files = ("graph.arrow", "costs.arrow", "blocks.arrow", "options.arrow")
    inside = (*files, "own.arrow", "frontier.arrow", "store", "plan")
    return [str(place / word) if word.partition("/")[0] in inside else word for word in words]


def run_apart(stage: str, words: list[str]) -> Taken:
    """Runs a stage as `make plan` does, what it imports compiled once; raises SystemExit where it
    fails."""
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    start = time.perf_counter()
    command = [sys.executable, "-m", "tightfit", stage, *words]
    process = os.posix_spawn(sys.executable, command, environment)
    _, status, used = os.wait4(process, 0)
    if status:
        raise SystemExit(f"{stage} failed: {json.dumps(words)}")
    seconds = time.perf_counter() - start
    return Taken(stage, seconds, used.ru_utime + used.ru_stime, 1024 * used.ru_maxrss)


def _row(taken: Taken) -> str:
    figures = f"{taken.wall:.1f} | {taken.cpu:.1f} | {taken.memory / 1e6:.0f}"
    return f"| {taken.stage} | {figures} |"
