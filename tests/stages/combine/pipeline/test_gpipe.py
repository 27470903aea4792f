"""Flushes: all batches forward, then all backward, against every contiguous allocation."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.stages.combine.pipeline.pipelines import (
    cases,
    chain_of_case,
    contiguous,
    layers_of_case,
    names_of,
    pipelines,
)
from tests.stages.combine.pipeline.test_plan_command import machine
from tightfit.__main__ import main
from tightfit.schemas.chain import write_chain
from tightfit.schemas.pipeline_pattern import read_pipeline_pattern
from tightfit.stages.combine.pipeline.allocation import Allocation, build_pattern
from tightfit.stages.combine.pipeline.allocator import AllocationProblem, load_allocator
from tightfit.stages.combine.pipeline.layers import PipelineLayers
from tightfit.stages.simulate.pipeline_pattern import simulate_pattern

CASES = cases("pipeline_contiguous")


def flush_ticks(allocation: Allocation, batches: int) -> int:
    """Plays so many batches task by task: each begins when the task ahead has done with its batch,
    and with the batch before it; backward only when the last forward of all has ended."""
    tasks = allocation.tasks
    ended = [0] * len(tasks)
    for _ in range(batches):
        ready = 0
        for number, task in enumerate(tasks):
            ready = ended[number] = max(ready, ended[number]) + task.forward
    turned = ended[-1]
    for _ in range(batches):
        ready = turned
        for number in reversed(range(len(tasks))):
            ready = ended[number] = max(ready, ended[number]) + tasks[number].backward
    return max(ended)


def fits(allocation: Allocation, memory: int, batches: int) -> bool:
    layers = allocation.layers
    return all(
        layers.memory(stage.first, stage.last, batches) <= memory for stage in allocation.stages
    )


def best_flush(layers: PipelineLayers, devices: int, memory: int, batches: int) -> int | None:
    fitting = (
        flush_ticks(allocation, batches)
        for allocation in contiguous(layers, names_of(devices))
        if fits(allocation, memory, batches)
    )
    return min(fitting, default=None)


def check(layers: PipelineLayers, devices: int, memory: int, batches: int) -> None:
    """The allocator finds the shortest flush, and the simulator plays it."""
    asked = AllocationProblem(layers, names_of(devices), memory, microbatches=batches)
    answer = load_allocator("gpipe").allocate(asked)
    expected = best_flush(layers, devices, memory, batches)
    if answer is None:
        assert expected is None
        return
    assert answer.timing.period == max(expected or 0, 1)
    assert answer.bound == answer.ticks == answer.timing.period / batches
    pattern = build_pattern(answer.allocation, answer.timing)
    room = answer.allocation.room(memory)
    played = simulate_pattern(pattern, answer.allocation.bytes(), room)
    assert pattern.batches == batches and max(played.in_flight) <= batches


@settings(deadline=None, max_examples=120)
@given(pipelines(longest=6), st.integers(1, 5))
def test_no_contiguous_allocation_has_a_shorter_flush(
    pipeline: tuple[PipelineLayers, int, int], batches: int
) -> None:
    layers, devices, memory = pipeline
    check(layers, devices, memory, batches)


@pytest.mark.parametrize("case", CASES[:12], ids=lambda case: case["id"])
@pytest.mark.parametrize("batches", [1, 4])
def test_known_chains(case: dict[str, Any], batches: int) -> None:
    check(layers_of_case(case), case["P"], case["memory"], batches)


def test_a_flush_of_many_batches_comes_near_to_a_pipeline_without(tmp_path: Path) -> None:
    case = CASES[0]
    write_chain(tmp_path / "chain.arrow", chain_of_case(case))
    path = machine(tmp_path / "machine.json", 3, 10**9)
    words = ["chain", "--chain", str(tmp_path / "chain.arrow"), "--machine", str(path)]

    def period(*more: str) -> float:
        assert main([*words, "--strategy", *more, "--out", str(tmp_path / "out")]) == 0
        return json.loads((tmp_path / "out/plan.json").read_text())["period"]

    flushes = [period("gpipe", "--microbatches", str(count)) for count in (1, 12, 200)]
    assert flushes == sorted(flushes, reverse=True)
    assert period("gpipe") == flushes[1]
    assert read_pipeline_pattern(tmp_path / "out/pattern.arrow").batches == 12
    assert period("pipedream") <= flushes[2] <= 1.3 * period("pipedream")


def test_a_plan_tells_the_time_of_a_step_of_some_microbatches(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_chain(tmp_path / "chain.arrow", chain_of_case(CASES[0]))
    path = machine(tmp_path / "machine.json", 2)
    words = ["chain", "--chain", str(tmp_path / "chain.arrow"), "--machine", str(path)]
    words += ["--out", str(tmp_path), "--strategy"]
    assert main([*words, "gpipe", "--microbatches", "0"]) == 1
    assert "--microbatches 0: expected 1 to 4096" in capsys.readouterr().err
    assert main([*words, "one_f_one_b", "--microbatches", "2"]) == 0
    said = re.search(
        r"A batch ends every (\S+) s on .*, a step of 2 takes (\S+) s", capsys.readouterr().out
    )
    assert said is not None and float(said[1]) <= float(said[2])
