"""A small model, and a run of it by the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from tightfit.__main__ import main

BUDGETS = {"80%": "80pct", "1kB": "1kB"}
MODEL = "results/tower"
POINT = f"{MODEL}/rockmate/80pct"


def tower(layers: int = 3, width: int = 16) -> tuple[Any, ...]:
    """The factory."""
    steps: list[torch.nn.Module] = []
    for _ in range(layers):
        steps += [torch.nn.Linear(width, width), torch.nn.GELU()]
    return torch.nn.Sequential(*steps).train(), ((torch.randn(256, width),), {})


def stage(*words: object) -> None:
    """Runs a stage, which must end well."""
    assert main([str(word) for word in words]) == 0


SOURCE = ("--factory", "tests.stages.audit.towers:tower")


def solve_tower(model: Path, store: Path) -> None:
    """Puts graph, costs, blocks and options of the model into a folder."""
    files = ("--graph", model / "graph.arrow", "--costs", model / "costs.arrow")
    stage("trace", *SOURCE, "--name", "tower", "--out", model / "graph.arrow")
    stage("profile", *files[:2], "--library", store, "--out", model / "costs.arrow")
    stage("partition", *files, "--out", model / "blocks.arrow")
    grid = ("--store", store, "--peaks", 2, "--saves", 2)
    stage("solve", "--blocks", model / "blocks.arrow", *grid, "--out", model / "options.arrow")


def plan_everything(folder: Path) -> None:
    """Fills results/ and store/ of a folder."""
    model = folder / MODEL
    files = ("--graph", model / "graph.arrow", "--costs", model / "costs.arrow")
    source = SOURCE
    solve_tower(model, folder / "store")
    frontier = model / "rockmate" / "frontier.arrow"
    blocks = ("--blocks", model / "blocks.arrow", "--options", model / "options.arrow")
    stage("combine", *files, *blocks, "--strategy", "rockmate", "--out", frontier)
    for budget, name in BUDGETS.items():
        point = model / "rockmate" / name
        stage("select", *files, "--frontier", frontier, "--budget", budget, "--out", point)
        plan = ("--plan", point / "plan.json")
        schedule = ("--schedule", point / "schedule.arrow")
        stage("generate", *files[:2], *schedule, *plan, "--out", point / "module")
        made = ("--module", point / "module", "--pairs", 0)
        stage("validate", *source, *files[:2], *plan, *made, "--out", point / "measurement.arrow")
    stage("report", "--model-dir", model, "--out", model / "report.html")
    stage("report", "--index", folder / "results", "--out", folder / "results" / "index.html")
