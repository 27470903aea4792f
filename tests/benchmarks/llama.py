"""Llama 2 7B with parameters and states in the host's memory: what the whole step takes, by
prediction. With AdamW on a described H100 of 12 GB, and with Adam on the RTX 3060 of Z, Table 4.2,
beside what OffMate takes there."""

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


OFFMATE_HEAD = (
    "| machine | budget | without | time | OffMate (Z) | bound | gap | device | host | in | out "
    "| waited | planned in CPU s |\n|---|---|---|---|---|---|---|---|---|---|---|---|---|"
)
RTX3060_BANDWIDTH, RTX3060_LINK = 3.6e11, 1.04e10
HOST_UPDATE_BANDWIDTH = 7.7e9
"""What makes the updates beside the host those of Z, Table 4.2: 1.1 GB of parameters a second."""
RTX3060_FLOPS = {"peak": 1.274e13, "measured": 7.6e12}
"""The card's peak, and what makes the step that keeps everything take the time of Z, 10.9 s."""


@dataclass(frozen=True)
class Ablation:
    """A row of Z, Table 4.2: the budget, what is left out, and the time of OffMate."""

    budget: str
    without: str
    published: str


ABLATIONS = (
    Ablation("9.6GB", "", "1.203"),
    Ablation("9.5GB", "updates on the host", "1.395"),
    Ablation("9.9GB", "activation transfers", "1.350"),
    Ablation("12GB", "", ""),
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


def rows_of_offmate(folder: Path) -> Iterator[str]:
    """A row in Markdown for each ablation, with the card's peak speeds and as it was measured."""
    place = folder / "llama-4"
    trace_llama(4, place)
    for speed in RTX3060_FLOPS:
        machine, costs = place / f"rtx3060-{speed}.json", place / f"rtx3060-{speed}.arrow"
        machine.write_text(rtx3060(speed))
        described: list[str | Path] = ["--source", "roofline", "--machine", machine]
        run_stage("profile", "--graph", place / "graph.arrow", *described, "--out", costs)
        for ablation in ABLATIONS:
            yield _offmate_row(ablation, speed, costs)


def rtx3060(speed: str, updates: bool = True) -> str:
    """The described RTX 3060 of Z, Table 4.2, as JSON, with updates on the host or without."""
    device = {"name": "cuda:0", "memory": 12_000_000_000, "bandwidth": RTX3060_BANDWIDTH}
    half = {"bfloat16": 5.1e13, "float16": 5.1e13}
    flops = {"float32": RTX3060_FLOPS[speed], **half}
    host = {"name": "host", "memory": 128_000_000_000}
    host |= {"bandwidth": HOST_UPDATE_BANDWIDTH} if updates else {}
    link = {"between": ["cuda:0", "host"], "bandwidth": RTX3060_LINK, "latency": 1e-5}
    return json.dumps(
        {
            "artifact": "tightfit.machine/1",
            "name": f"rtx3060-{speed}",
            "devices": [{**device, "flops": flops, "latency": 4e-6}],
            "memories": [host],
            "links": [link],
        }
    )


def _offmate_row(ablation: Ablation, speed: str, costs: Path) -> str:
    place, name = costs.parent, f"{speed}-{ablation.without.replace(' ', '-')}-{ablation.budget}"
    machine, out = place / f"machine-{name}.json", place / "offmate" / name
    machine.write_text(rtx3060(speed, ablation.without != "updates on the host"))
    given: list[str | Path] = ["--graph", place / "graph.arrow", "--costs", costs]
    given += ["--machine", machine, "--optimizer", "adam", "--budget", ablation.budget]
    given += ["--activations", "device"] if ablation.without == "activation transfers" else []
    seconds = run_stage("optimizer-offload", *given, "--out", out)
    figures = _plan_figures(out, seconds)
    return (
        f"| {speed} | {ablation.budget} | {ablation.without} | {figures[0]} | "
        f"{ablation.published} | {' | '.join(figures[1:])} |"
    )


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
    trace_llama(case.batch, place)
    if (place / "costs.arrow").exists():
        return
    described = ["--source", "roofline", "--machine", "h100"]
    run_stage(
        "profile", "--graph", place / "graph.arrow", *described, "--out", place / "costs.arrow"
    )


def trace_llama(batch: int, place: Path) -> None:
    """The graph of a batch, once."""
    place.mkdir(parents=True, exist_ok=True)
    if (place / "graph.arrow").exists():
        return
    arguments = json.dumps({"batch": batch})
    model = ["--factory", "data.large_models:llama2_7b", "--arguments", arguments]
    run_stage("trace", *model, "--name", place.name, "--out", place / "graph.arrow")


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
    figures = _plan_figures(out, seconds)
    updates = schedule_optimizer_plan(out / "schedule.arrow")
    far = updates.second_tier.states(updates.costs) if updates and updates.second_tier else 0
    figures.insert(5, f"{far / 1e9:.1f} GB")
    return f"| {case.batch} | {link} | {' | '.join(figures)} |"


def _plan_figures(out: Path, seconds: float) -> list[str]:
    """Time and bound beside having everything on the device, the gap, the bytes of device and host,
    those that come and leave, what is waited, and the seconds of planning."""
    plan = read_plan(out / "plan.json")
    moved = plan.transfers
    assert plan.time and plan.peak and plan.lower_bound and plan.gap and moved
    everything = plan.keep_all.time
    total = plan.baseline.bytes_before_step + plan.peak
    return [
        f"{plan.time / everything:.3f}",
        f"{plan.lower_bound / everything:.3f}",
        f"{plan.gap:.1%}",
        f"{total / 1e9:.1f} GB",
        f"{moved.host_peak / 1e9:.1f} GB",
        f"{moved.prefetched_bytes / 1e9:.1f} GB",
        f"{moved.offloaded_bytes / 1e9:.1f} GB",
        f"{moved.wait_seconds / plan.time:.1%}",
        f"{seconds:.0f}",
    ]
