"""Llama 2 7B with AdamW on a described H100 of 12 GB, parameters and states in the host's memory:
what the whole step takes, by prediction."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from schemas.machine import MACHINES
from schemas.plan import read_plan
from tests.bench.running import run_stage

BUDGET = "12GB"
HOST = {"name": "host", "memory": 512_000_000_000, "bandwidth": 3.072e11}
"""Eight channels of DDR5-4800 (Intel, *Xeon Platinum 8480+*, specifications): 307.2 GB/s."""
HEAD = (
    "| sequences of 512 | link, each way | time | bound | gap | device | host | in | out "
    "| waited | planned in CPU s |\n|---|---|---|---|---|---|---|---|---|---|---|"
)


@dataclass(frozen=True)
class Llama:
    """Sequences of 512 tokens in a step, and bytes a second of the link, each way."""

    batch: int
    bandwidth: float


CASES = (Llama(4, 50e9), Llama(8, 50e9), Llama(8, 25e9), Llama(4, 25e9))


def rows_of_llama(folder: Path) -> Iterator[str]:
    """A row in Markdown for each case; times beside that of having everything on the device."""
    for case in CASES:
        place = folder / f"llama-{case.batch}"
        _prepare(case, place)
        yield _row(case, place)


def machine_of(bandwidth: float) -> str:
    """The described H100 with the memory of its host and a link, as JSON."""
    described = json.loads((MACHINES / "h100.json").read_text())
    ends = [described["devices"][0]["name"], "host"]
    link = {"between": ends, "bandwidth": bandwidth, "latency": 1e-5}
    return json.dumps({**described, "memories": [HOST], "links": [link], "sources": {}})


def _prepare(case: Llama, place: Path) -> None:
    """Graph and costs, once for each batch."""
    place.mkdir(parents=True, exist_ok=True)
    if (place / "costs.arrow").exists():
        return
    arguments = json.dumps({"batch": case.batch})
    model = ["--factory", "data.large:llama2_7b", "--arguments", arguments, "--name", place.name]
    run_stage("trace", *model, "--out", place / "graph.arrow")
    described = ["--source", "roofline", "--machine", "h100"]
    run_stage(
        "profile", "--graph", place / "graph.arrow", *described, "--out", place / "costs.arrow"
    )


def _row(case: Llama, place: Path) -> str:
    link = f"{case.bandwidth / 1e9:g} GB/s"
    machine = place / f"machine-{case.bandwidth / 1e9:g}.json"
    machine.write_text(machine_of(case.bandwidth))
    out = place / "whole" / f"{BUDGET}-{case.bandwidth / 1e9:g}"
    given: list[str | Path] = ["--graph", place / "graph.arrow"]
    given += ["--costs", place / "costs.arrow"]
    seconds = run_stage("whole", *given, "--machine", machine, "--budget", BUDGET, "--out", out)
    plan = read_plan(out / "plan.json")
    moved = plan.transfers
    assert plan.time and plan.peak and plan.lower_bound and plan.gap and moved
    everything = plan.keep_all.time
    total = plan.fixed.there_before + plan.peak
    return (
        f"| {case.batch} | {link} | {plan.time / everything:.3f} | "
        f"{plan.lower_bound / everything:.3f} | {plan.gap:.1%} | {total / 1e9:.1f} GB | "
        f"{moved.host_peak / 1e9:.1f} GB | {moved.returned / 1e9:.1f} GB | "
        f"{moved.left / 1e9:.1f} GB | {moved.waited / plan.time:.1%} | {seconds:.0f} |"
    )
