"""Llama 2 7B with AdamW on a described H100 of 12 GB, parameters and states in the host's memory:
what the whole step takes, by prediction."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.benchmarks.stage_commands import run_stage
from tightfit.schemas.machine import MACHINES
from tightfit.schemas.plan import read_plan
from tightfit.schemas.schedule import schedule_optimizer_plan

BUDGET = "12GB"
HOST = {"name": "host", "memory": 512_000_000_000, "bandwidth": 3.072e11}
SMALL_HOST, DISK, DISK_LINK = 64_000_000_000, {"name": "disk", "memory": 10**12}, 7e9
"""The host: eight channels of DDR5-4800 (Intel, *Xeon Platinum 8480+*, specifications), 307.2 GB/s.
A smaller one, which has no room for all states, with a disk of 7 GB/s each way behind it."""
HEAD = (
    "| sequences of 512 | link, each way | time | bound | gap | device | host | disk | in | out "
    "| waited | planned in CPU s |\n|---|---|---|---|---|---|---|---|---|---|---|---|"
)


@dataclass(frozen=True)
class Llama:
    """Sequences of 512 tokens in a step, bytes a second of the link, each way, and whether the host
    is the smaller one with a disk."""

    batch: int
    bandwidth: float
    disk: bool = False

    @property
    def place(self) -> str:
        """The name of its files."""
        return f"{self.bandwidth / 1e9:g}{'-disk' if self.disk else ''}"


CASES = (
    Llama(4, 50e9),
    Llama(8, 50e9),
    Llama(8, 25e9),
    Llama(4, 25e9),
    Llama(8, 50e9, disk=True),
)


def rows_of_llama(folder: Path) -> Iterator[str]:
    """A row in Markdown for each case; times beside that of having everything on the device."""
    for case in CASES:
        place = folder / f"llama-{case.batch}"
        _prepare(case, place)
        yield _row(case, place)


def machine_of(bandwidth: float, disk: bool = False) -> str:
    """The described H100 with the memory of its host and a link, or with the smaller one and a
    disk, as JSON."""
    described = json.loads((MACHINES / "h100.json").read_text())
    ends = [described["devices"][0]["name"], "host"]
    link = {"between": ends, "bandwidth": bandwidth, "latency": 1e-5}
    memories, links = [HOST], [link]
    if disk:
        memories = [{**HOST, "memory": SMALL_HOST}, DISK]
        links.append({"between": ["host", "disk"], "bandwidth": DISK_LINK})
    return json.dumps({**described, "memories": memories, "links": links, "sources": {}})


def _prepare(case: Llama, place: Path) -> None:
    """Graph and costs, once for each batch."""
    place.mkdir(parents=True, exist_ok=True)
    if (place / "costs.arrow").exists():
        return
    arguments = json.dumps({"batch": case.batch})
    model = ["--factory", "data.large_models:llama2_7b", "--arguments", arguments]
    run_stage("trace", *model, "--name", place.name, "--out", place / "graph.arrow")
    described = ["--source", "roofline", "--machine", "h100"]
    run_stage(
        "profile", "--graph", place / "graph.arrow", *described, "--out", place / "costs.arrow"
    )


def _row(case: Llama, place: Path) -> str:
    link = f"{case.bandwidth / 1e9:g} GB/s"
    machine = place / f"machine-{case.place}.json"
    machine.write_text(machine_of(case.bandwidth, case.disk))
    out = place / "whole" / f"{BUDGET}-{case.place}"
    given: list[str | Path] = ["--graph", place / "graph.arrow"]
    given += ["--costs", place / "costs.arrow"]
    seconds = run_stage(
        "optimizer-offload", *given, "--machine", machine, "--budget", BUDGET, "--out", out
    )
    plan = read_plan(out / "plan.json")
    moved = plan.transfers
    assert plan.time and plan.peak and plan.lower_bound and plan.gap and moved
    everything, updates = plan.keep_all.time, schedule_optimizer_plan(out / "schedule.arrow")
    far = updates.second_tier.states(updates.costs) if updates and updates.second_tier else 0
    total = plan.baseline.bytes_before_step + plan.peak
    return (
        f"| {case.batch} | {link} | {plan.time / everything:.3f} | "
        f"{plan.lower_bound / everything:.3f} | {plan.gap:.1%} | {total / 1e9:.1f} GB | "
        f"{moved.host_peak / 1e9:.1f} GB | {far / 1e9:.1f} GB | {moved.prefetched_bytes / 1e9:.1f} "
        "GB | "
        f"{moved.offloaded_bytes / 1e9:.1f} GB | {moved.wait_seconds / plan.time:.1%} | "
        f"{seconds:.0f} |"
    )
