"""`python -m tests.benchmarks`: plans the shipped models from nothing and measures them beside
peers."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from itertools import chain
from pathlib import Path

from tests.benchmarks import (
    budget_or_frontier,
    chain_offload,
    depth_scaling,
    disk_offload,
    fused_kernels,
    graph_zoo,
    host_link,
    llama,
    optimizer_steps,
    strategy_gain,
)
from tests.benchmarks.cases import CASES, Case
from tests.benchmarks.device_spec import table_of_described
from tests.benchmarks.hierarchy_partition import HEAD, rows_of_hierarchies
from tests.benchmarks.pipelines import GROWTH, lines_of_deep, lines_of_figures, rows_of_growth
from tests.benchmarks.tables import planning_table, result_table, table_of_chains

STRATEGY = "rockmate"


def plan_from_nothing(case: Case, folder: Path) -> list[tuple[str, float]]:
    """Runs the stages by hand into an empty folder; wall-clock seconds of each."""
    graph, costs = folder / "graph.arrow", folder / "costs.arrow"
    blocks, options = folder / "blocks.arrow", folder / "options.arrow"
    frontier, store = folder / "frontier.arrow", folder / "store"
    factory = ["--factory", case.factory, "--arguments", json.dumps(case.arguments)]
    made: list[str | Path] = ["--graph", graph, "--costs", costs]
    calls: list[tuple[str, list[str | Path]]] = [
        ("trace", [*factory, "--name", case.name, "--device", "cpu", "--out", graph]),
        ("profile", ["--graph", graph, "--library", store, "--device", "cpu", "--out", costs]),
        ("partition", [*made, "--out", blocks]),
        (
            "solve",
            ["--blocks", blocks, "--store", store, "--solver", "highs", "--peaks", "4",
             "--saves", "6", "--jobs", "2", "--out", options],
        ),
        (
            "combine",
            [*made, "--blocks", blocks, "--options", options, "--strategy", STRATEGY,
             "--workers", "2", "--out", frontier],
        ),
    ]  # fmt: skip
    for number, budget in enumerate(("50%", "40%"), 1):
        out = folder / f"plan{number}"
        calls.append(
            (
                f"select {budget}",
                ["--frontier", frontier, *made, "--budget", budget, "--out", out],
            )
        )
        calls.append(
            (
                f"generate {budget}",
                ["--graph", graph, "--schedule", out / "schedule.arrow",
                 "--plan", out / "plan.json", "--out", out / "module"],
            )
        )  # fmt: skip
    taken = []
    for stage, arguments in calls:
        name = stage.split()[0]
        start = time.perf_counter()
        subprocess.run([sys.executable, "-m", "tightfit", name, *map(str, arguments)], check=True)
        taken.append((stage, time.perf_counter() - start))
        print(f"  {stage}: {taken[-1][1]:.1f} s", flush=True)
    return taken


def main() -> None:
    """Prints the tables in Markdown as they come, and keeps the raw results if asked."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks")
    parser.add_argument("--rounds", type=int, default=15, help="paired timings of each step")
    parser.add_argument("--models", nargs="*", default=[case.name for case in CASES])
    parser.add_argument("--chains", action="store_true", help="time the dynamic program too")
    parser.add_argument("--hierarchies", action="store_true", help="time H-Partition too")
    parser.add_argument("--offload", action="store_true", help="plan chains with a link too")
    parser.add_argument("--deep", action="store_true", help="plan deep models too, for an hour")
    parser.add_argument("--graphs", action="store_true", help="plan graphs of many shapes too")
    parser.add_argument("--strategies", action="store_true", help="compare strategies by depth too")
    parser.add_argument("--linked", action="store_true", help="plan models with a link too")
    parser.add_argument("--asked", action="store_true", help="compare two ways to a plan too")
    parser.add_argument("--described", action="store_true", help="plan large models for an H100")
    parser.add_argument("--pipelines", action="store_true", help="plan pipelines too")
    parser.add_argument("--llama", action="store_true", help="plan Llama 2 7B in 12 GB too")
    parser.add_argument("--offmate", action="store_true", help="plan the steps of OffMate too")
    parser.add_argument("--waiting", action="store_true", help="let activations wait on a disk too")
    parser.add_argument("--whole", action="store_true", help="take whole steps with AdamW too")
    parser.add_argument("--fused", action="store_true", help="measure fused kernels alone")
    parser.add_argument("--folder", type=Path, help="keep what is made here")
    options = parser.parse_args()
    root = options.folder or Path(tempfile.mkdtemp(prefix="bench-"))
    if options.chains:
        print(table_of_chains(), flush=True)
    if options.hierarchies:
        print(HEAD, flush=True)
        for row in rows_of_hierarchies():
            print(row, flush=True)
    if options.offload:
        print(chain_offload.HEAD, flush=True)
        for row in chain_offload.rows_of_offloads():
            print(row, flush=True)
    if options.deep:
        print(depth_scaling.HEAD, flush=True)
        for row in depth_scaling.rows_of_depths(root):
            print(row, flush=True)
    if options.graphs:
        print(graph_zoo.HEAD, flush=True)
        for row in graph_zoo.rows_of_graphs(root):
            print(row, flush=True)
    if options.strategies:
        print(strategy_gain.HEAD, flush=True)
        for row in strategy_gain.rows_of_worth(root):
            print(row, flush=True)
    if options.linked:
        print(host_link.HEAD, flush=True)
        for row in host_link.rows_of_linked(root / "linked"):
            print(row, flush=True)
    if options.asked:
        print(budget_or_frontier.HEAD, flush=True)
        for row in budget_or_frontier.rows_of_asked(root / "asked"):
            print(row, flush=True)
    if options.described:
        for line in table_of_described(root / "described"):
            print(line, flush=True)
    if options.pipelines:
        print(GROWTH, flush=True)
        networks = root / "networks"
        lines = chain(rows_of_growth(), lines_of_figures(networks), lines_of_deep(networks))
        for line in lines:
            print(line, flush=True)
    if options.llama:
        print(llama.HEAD, flush=True)
        for row in llama.rows_of_llama(root):
            print(row, flush=True)
    if options.offmate:
        print(llama.OFFMATE_HEAD, flush=True)
        for row in llama.rows_of_offmate(root):
            print(row, flush=True)
    if options.waiting:
        print(disk_offload.table_of_waiting(root / "waiting", options.rounds), flush=True)
    if options.whole:
        print(optimizer_steps.HEAD, flush=True)
        for row in optimizer_steps.rows_of_whole_steps(root / "whole", options.rounds):
            print(row, flush=True)
    if options.fused:
        for table in fused_kernels.tables_of_fused(root / "fused", options.rounds, options.models):
            print(table, flush=True)
        return
    for case in CASES:
        if case.name not in options.models:
            continue
        folder = root / case.name
        folder.mkdir(parents=True, exist_ok=True)
        print(f"## {case.title}", flush=True)
        if not (folder / "frontier.arrow").exists():
            print(planning_table(plan_from_nothing(case, folder)), flush=True)
        from tests.benchmarks.planned_modules import measure_case

        results = measure_case(case, folder, options.rounds)
        (folder / "results.json").write_text(json.dumps([asdict(r) for r in results], indent=1))
        print(result_table(results), flush=True)


if __name__ == "__main__":
    main()
