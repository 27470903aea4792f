"""`tests/gpu/prepare.sh`: makes the plans that `tests/gpu/run.sh` measures, on a machine that needs
no GPU.

PyTorch has to be the one of the machine with the GPU, built for CUDA, and Python its minor version.
Without a GPU the steps are captured on one that computes nothing (`tests.gpu.cuda_stubs`), which
has CUDA's operators and PyTorch's allocator: what each op and each way to checkpoint takes is
measured there, and times are those of the description of an H100. What is there is not made again.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO

import torch

from tests.gpu.model_sizes import FULL, SELECTIVE
from tests.gpu.steps import (
    CHOSEN,
    FRONTIER,
    LINKED,
    ROOT,
    SHARES,
    SMALL,
    SMALL_SHARE,
    plan_commands,
)
from tightfit.schemas.costs import Costs, read_costs, write_costs
from tightfit.schemas.machine import MACHINES

HOST = {"name": "host", "memory": 100_000_000_000}
LINK = {"between": ["cuda:0", "host"], "bandwidth": 4.5e10, "latency": 1e-5}
"""The link of an H100 to its host, PCIe 5.0 x16 with pinned memory, of which 64 GB a second are the
most."""
NO_CUDNN = "resnet"
"""The model whose operators do not run on a GPU that computes nothing."""


@dataclass(frozen=True)
class Case:
    """A model of a size, and its budgets by name."""

    name: str
    size: str
    budgets: dict[str, str]

    @property
    def folder(self) -> str:
        """Where its files are, below the folder of all plans."""
        return f"{self.name}-{self.size}"


def cases(size: str) -> list[Case]:
    """All models with their budgets, those that are run first before the others."""
    found = {(name, size): dict(budgets) for name, budgets in CHOSEN.items()}
    small = "small" if size == "full" else "tiny"
    for name in SMALL:
        found.setdefault((name, small), {})["most"] = SMALL_SHARE
    found[LINKED[0], size][f"{LINKED[1]}-linked"] = SHARES[LINKED[1]]
    order = sorted(found, key=lambda key: key[1] != small)
    return [Case(name, of, found[name, of]) for name, of in order]


def main() -> None:
    """Makes all plans; a model whose plans fail is told of, and the others are made."""
    parser = argparse.ArgumentParser(prog="python -m tests.gpu.prepare", description=__doc__)
    parser.add_argument(
        "--out", type=Path, default=Path("gpu-report/plans"), help="folder to write"
    )
    parser.add_argument("--device", default="cuda", help="cuda, or cpu to try this out")
    parser.add_argument("--size", choices=("full", "tiny"), default="full")
    parser.add_argument("--only", default="", help="only models whose folder holds this text")
    parser.add_argument("--strategy", default="rockmate")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    asked = parser.parse_args()
    if asked.device.startswith("cuda") and not torch.cuda.is_available():
        raise SystemExit(
            f"{sys.executable} has PyTorch {torch.__version__}, which finds no GPU: run "
            "tests/gpu/prepare.sh, with one that is built for CUDA, or try this out with "
            "--device cpu --size tiny"
        )
    failed = []
    for case in cases(asked.size):
        if asked.only in case.folder:
            started = time.monotonic()
            good = prepared(asked.out.resolve(), case, asked.device, asked.strategy, asked.jobs)
            failed += [] if good else [case.folder]
            print(f"{case.folder}: {time.monotonic() - started:.0f} s", flush=True)
    sys.exit(f"not made: {', '.join(failed)}" if failed else 0)


def prepared(out: Path, case: Case, device: str, strategy: str, jobs: int) -> bool:
    """Makes what is missing of a case; returns whether all is there. What fails is in `log.txt` of
    its folder."""
    place, work = out / case.folder, out.parent / "planning" / case.folder
    place.mkdir(parents=True, exist_ok=True)
    work.mkdir(parents=True, exist_ok=True)
    budgets = {name: in_bytes(case, budget, device, work) for name, budget in case.budgets.items()}
    (place / "budgets.json").write_text(json.dumps(budgets))
    graph, costs = place / "graph.arrow", place / "costs.arrow"
    good = True
    with (work / "log.txt").open("a") as log:
        if not costs.exists():
            good = ran(traced(case, graph, device), log) and priced(
                case, graph, costs, work, device, log
            )
        plain = {name: budget for name, budget in budgets.items() if not name.endswith("-linked")}
        linked = {name: budget for name, budget in budgets.items() if name.endswith("-linked")}
        good = good and planned(graph, costs, place, work, plain, strategy, jobs, [], log)
        if linked:
            machine = work / "machine.json"
            machine.write_text(json.dumps(described(device)))
            more = ["--machine", machine]
            good = planned(graph, costs, place, work, linked, "offload", jobs, more, log) and good
    return good


def described(device: str) -> dict[str, object]:
    """An H100 with a link to its host; for a CPU, any device with one."""
    machine = json.loads((MACHINES / "h100.json").read_text())
    machine["devices"][0]["name"] = near = "cuda:0" if device.startswith("cuda") else "cpu"
    return {
        **machine,
        "memories": [HOST],
        "links": [{**LINK, "between": [near, "host"]}],
        "sources": {},
    }


def traced(case: Case, graph: Path, device: str) -> list[list[str]]:
    """The command that captures a model's step."""
    words = [
        "trace",
        "--factory",
        f"tests.gpu.models:{case.name}",
        "--search-path",
        ROOT,
        "--device",
        device,
    ]
    words += ["--arguments", json.dumps({"size": case.size}), "--name", case.name, "--out", graph]
    return [_stage(*words)]


def priced(case: Case, graph: Path, costs: Path, work: Path, device: str, log: IO[str]) -> bool:
    """Writes the costs of a captured step: bytes as measured, times by the description; those of a
    CPU as measured."""
    measured, described = work / "measured.arrow", work / "described.arrow"
    words = ["profile", "--graph", graph]
    measuring = _stage(*words, "--library", work / "store", "--device", device, "--out", measured)
    if not device.startswith("cuda"):
        return ran([[*measuring[:-1], str(costs)]], log)
    describing = _stage(*words, "--source", "roofline", "--machine", "h100", "--out", described)
    if case.name == NO_CUDNN:
        return ran([[*describing[:-1], str(costs)]], log)
    if not ran([measuring, describing], log):
        return False
    times, taken = read_costs(described), read_costs(measured).rows
    rows = [
        replace(taken.get(key, row), seconds=row.seconds, spread=0.0, lost=0.0)
        for key, row in times.rows.items()
    ]
    write_costs(costs, Costs(rows, times.device))
    return True


def planned(
    graph: Path,
    costs: Path,
    place: Path,
    work: Path,
    budgets: dict[str, str],
    strategy: str,
    jobs: int,
    more: Sequence[object],
    log: IO[str],
) -> bool:
    """Makes the plans and packages that are not there, and takes them to their place."""
    missing = {name: budget for name, budget in budgets.items() if not (place / name).exists()}
    commands = plan_commands(graph, costs, work, missing, jobs, more, strategy)
    if (work / f"{strategy}.arrow").exists():
        commands = commands[FRONTIER:]
    if missing and not ran(commands, log):
        return False
    for name in missing:
        (work / name).rename(place / name)
        sentence = json.loads((place / name / "plan.json").read_text())["message"]
        print(f"{place.name}/{name}: {sentence}", flush=True)
    return True


def in_bytes(case: Case, budget: str, device: str, work: Path) -> str:
    """A budget; for one that names a way to checkpoint, the bytes that this takes."""
    if budget not in (FULL, SELECTIVE):
        return budget
    result = work / f"{budget}.json"
    if not result.exists():
        words = ["--model", case.name, "--size", case.size, "--way", budget, "--device", device]
        words += ["--steps", "1", "--no-bits", "--out", str(result)]
        command = [sys.executable, "-m", "tests.gpu.contestant", *words]
        subprocess.run(command, cwd=ROOT, check=True)
    found = json.loads(result.read_text())
    return str(found["renewed"] or found["fixed"] + found["peak"])


def ran(commands: Sequence[Sequence[str]], log: IO[str]) -> bool:
    """Runs commands up to the first that fails, which is told of."""
    for command in commands:
        done = subprocess.run(command, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT, check=False)
        if done.returncode:
            print(f"ends with {done.returncode}: {' '.join(command)}", flush=True)
            return False
    return True


def _stage(*words: object) -> list[str]:
    return [sys.executable, "-m", "tightfit", *map(str, words)]


if __name__ == "__main__":
    main()
