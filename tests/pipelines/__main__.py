"""`make pipelines`: real models as pipelines in processes of this machine, each held to one process
bit for bit and to the bytes that were predicted. Prints a table; the exit code is 1 where anything
differs."""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch.multiprocessing

from tests.pipelines import replicas
from tests.stages.validate.pipelines import machine
from tightfit.__main__ import STAGES
from tightfit.schemas.pipeline import read_pipeline
from tightfit.schemas.pipeline_measurement import FAILED_STATUS, read_pipeline_measurement
from tightfit.schemas.pipeline_plan import read_pipeline_plan
from tightfit.util.errors import ScheduleError

HEAD = "| model | ranks | stages of each | bits | bytes of each step | a step | one process |"
ROOM = 10**12
"""Bytes a device, to see what a pipeline without limits takes."""


@dataclass(frozen=True)
class Case:
    """A model over so many ranks, each with a `share` of what the largest one takes by
    `one_f_one_b` without limits."""

    title: str
    factory: str
    ranks: int
    strategy: str = "madpipe"
    inside: str = ""
    share: float = 1.0


CASES = (
    Case("GPT-2", "gpt2", 2, "pipeline_ilp"),
    Case("GPT-2", "gpt2", 3, share=0.85),
    Case("GPT-2", "gpt2", 4, "pipeline_ilp"),
    Case("GPT-2, rotor inside", "gpt2", 2, "one_f_one_b", "rotor", 0.75),
    Case("GPT-2, rockmate inside", "gpt2_plain", 3, "madpipe", "rockmate", 0.75),
    Case("ResNet-50", "resnet50", 3),
    Case("T5", "t5", 3),
    Case("T5, rotor inside", "t5", 3, "madpipe", "rotor", 0.8),
)


def main() -> int:
    """Returns 1 where a pipeline is not what it was promised to be."""
    parser = argparse.ArgumentParser(prog="python -m tests.pipelines", description=__doc__)
    parser.add_argument("--only", default="", help="the cases whose title has this in it")
    options = parser.parse_args()
    print(f"{HEAD}\n{'|---' * (HEAD.count('|') - 1)}|")
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        for number, case in enumerate(CASES):
            if options.only in case.title:
                failed += not run(case, Path(folder) / str(number), Path(folder) / case.factory)
        if options.only in "2 x 2":
            failed += not two_by_two(Path(folder))
    return 1 if failed else 0


def stage(name: str, *words: object) -> None:
    """Runs a stage as its command does; its errors are raised."""
    import importlib

    module = importlib.import_module(STAGES[name][0])
    parser = argparse.ArgumentParser(prog=name)
    module.add_arguments(parser)
    with contextlib.redirect_stdout(io.StringIO()):
        module.run(parser.parse_args([str(word) for word in words]))


def prepared(case: Case, place: Path) -> None:
    """Graph, costs, blocks, chain and options of a model, made once."""
    if (place / "chain.arrow").exists():
        return
    place.mkdir()
    graph, costs = ("--graph", place / "graph.arrow"), ("--costs", place / "costs.arrow")
    factory = ("--factory", f"tests.pipelines.models:{case.factory}")
    stage("trace", *factory, "--name", case.factory, "--out", graph[1])
    stage("profile", *graph, *factory, "--library", place / "library", "--out", costs[1])
    made = ("--out", place / "blocks.arrow", "--chain", place / "chain.arrow")
    stage("partition", *graph, *costs, *made)
    solved = ("--store", place / "store", "--solver", "none", "--out", place / "options.arrow")
    stage("solve", "--blocks", place / "blocks.arrow", *solved)


def planned(case: Case, place: Path, source: Path) -> None:
    """Plan, ranks and package, with as little memory as the share asks for and every byte fits."""
    memory = ROOM
    for share in (0.0, *(case.share * 1.05**more for more in range(20))):
        strategy = case.strategy if share else "one_f_one_b"
        devices = machine(place / "machine.json", case.ranks, memory)
        asked = ["--machine", devices, "--strategy", strategy, "--weight-copies", 2]
        options = ["--options", source / "options.arrow"] if case.inside == "rockmate" else []
        if share and case.inside:
            asked += ["--stage-recompute", case.inside, *options]
        stage("chain", "--chain", source / "chain.arrow", *asked, "--out", place / "plan")
        plan = read_pipeline_plan(place / "plan" / "plan.json")
        if not share:
            largest = max(device.peak for device in plan.devices)
        elif plan.status != "infeasible" and _split(place, source, options):
            return
        memory = int(largest * (case.share if not share else share * 1.05))
    raise ScheduleError(f"{case.title} does not fit {memory} bytes a device")


def _split(place: Path, source: Path, options: list[Any]) -> bool:
    files = [f for name in ("graph", "costs", "blocks") for f in _file(source, name)]
    planned = ("--plan", place / "plan", *options, "--out", place / "ranks")
    try:
        stage("pipeline", *files, *planned)
    except ScheduleError as error:
        if "plan with less memory" in str(error):
            return False
        raise
    package = ("--pipeline", place / "ranks", "--plan", place / "plan" / "plan.json")
    stage("generate", *_file(source, "graph"), *package, "--out", place / "module")
    return True


def _file(source: Path, name: str) -> tuple[str, Path]:
    return f"--{name}", source / f"{name}.arrow"


def run(case: Case, place: Path, source: Path) -> bool:
    """A line of the table; whether all is as it was promised."""
    start = time.monotonic()
    place.mkdir()
    prepared(case, source)
    planned(case, place, source)
    files = ("--pipeline", place / "ranks", "--plan", place / "plan" / "plan.json")
    factory = ("--factory", f"tests.pipelines.models:{case.factory}")
    out = ("--module", place / "module", "--out", place / "measurement.json")
    stage("validate", *_file(source, "graph"), *files, *factory, *out)
    measured = read_pipeline_measurement(place / "measurement.json")
    pipeline = read_pipeline(place / "ranks" / "pipeline.json")
    stages = [
        "+".join(str(one.stage) for one in pipeline.stages if one.rank == rank)
        for rank in range(pipeline.ranks)
    ]
    sizes = ", ".join(f"{row.measured_peak:,}" for row in measured.ranks)
    failed = measured.status == FAILED_STATUS
    equal = measured.message if failed else "equal"
    step = max(row.seconds for row in measured.ranks)
    print(
        f"| {case.title} | {pipeline.ranks} | {', '.join(stages)} | {equal} | {sizes} | "
        f"{step:.3f} s | {measured.single_process_seconds:.3f} s |",
        flush=True,
    )
    print(f"{case.title}: {time.monotonic() - start:.0f} s", file=sys.stderr)
    return not failed


def two_by_two(folder: Path) -> bool:
    """Two replicas of a pipeline of two ranks."""
    case = Case("2 x 2", "gpt2", 2)
    place, source = folder / "replicas", folder / "plain"
    place.mkdir()
    source.mkdir()
    graph, costs = _file(source, "graph"), _file(source, "costs")
    factory = ("--factory", "tests.pipelines.models:gpt2", "--arguments", '{"dropout": 0.0}')
    stage("trace", *factory, "--name", "gpt2", "--out", graph[1])
    stage("profile", *graph, *factory, "--library", source / "library", "--out", costs[1])
    made = ("--out", source / "blocks.arrow", "--chain", source / "chain.arrow")
    stage("partition", *graph, *costs, *made)
    planned(case, place, source)
    given = ("tests.pipelines.models:gpt2", str(place / "module"), str(place / "meet"))
    try:
        torch.multiprocessing.spawn(replicas.work, given, nprocs=4, join=True)
    except torch.multiprocessing.spawn.ProcessException as error:  # type: ignore[attr-defined]
        print(json.dumps(str(error).strip().splitlines()[-1]), file=sys.stderr)
        return False
    print("| GPT-2, two replicas | 2 x 2 | | equal | | | |", flush=True)
    return True


if __name__ == "__main__":
    sys.exit(main())
