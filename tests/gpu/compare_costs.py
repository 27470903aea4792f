"""Compares the costs of a step as measured with those by the description of the device, op by op:
`python -m tests.gpu.compare_costs --graph GRAPH --costs MEASURED --described COSTS --out JSON`."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from tightfit.schemas.costs import Costs, read_costs
from tightfit.schemas.graph.training_graph import Graph, read_graph

FAR = 0.3
"""How far a described time may be off, relative to the measured one."""
MOST = 60
"""Ops that are listed."""


def compared(graph: Graph, measured: Costs, described: Costs) -> dict[str, Any]:
    """The distinct ops of a step whose described time is off by more than `FAR`, those first that
    take most of the measured step, and both times of all ops together. Seconds and bytes."""
    rows: dict[str, dict[str, Any]] = {}
    for op in graph.ops:
        mine, other = measured.of(graph, op), described.of(graph, op)
        row = rows.setdefault(mine.key, {"target": op.target, "times": 0})
        row["times"] += 1
        row |= {
            "measured": mine.seconds,
            "described": other.seconds,
            "peak": mine.peak,
            "described_peak": other.peak,
        }
        row["shapes"] = [list(graph.values[value].shape) for value in op.inputs]
    total = sum(row["times"] * row["measured"] for row in rows.values())
    planned = sum(row["times"] * row["described"] for row in rows.values())
    far = [
        row
        for row in rows.values()
        if abs(row["described"] - row["measured"]) > FAR * row["measured"]
    ]
    far.sort(key=lambda row: -row["times"] * row["measured"])
    share = sum(row["times"] * row["measured"] for row in far) / total if total else 0.0
    told = (
        f"{len(far)} of {len(rows)} distinct ops, {share:.0%} of the time, are described more than "
        f"{FAR:.0%} off; all ops take {1e3 * total:.1f} ms, {1e3 * planned:.1f} ms as described"
    )
    return {"told": told, "seconds": total, "described": planned, "off": far[:MOST]}


def main() -> None:
    """Writes the comparison."""
    parser = argparse.ArgumentParser(prog="python -m tests.gpu.compare_costs")
    for name in ("graph", "costs", "described", "out"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    asked = parser.parse_args()
    found = compared(read_graph(asked.graph), read_costs(asked.costs), read_costs(asked.described))
    asked.out.write_text(json.dumps(found))


if __name__ == "__main__":
    main()
