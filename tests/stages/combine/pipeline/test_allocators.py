"""What holds for every allocator of the registry, one that comes from outside, and who beats
whom."""

from __future__ import annotations

import math
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

from tests.stages.combine.pipeline.pipelines import (
    ENOUGH,
    allocations,
    cases,
    chain_of_case,
    names_of,
    pipelines,
    wire_of_case,
)
from tightfit.schemas.chain import Chain, ChainPosition
from tightfit.schemas.pipeline_devices import PipelineDevices
from tightfit.stages.combine.milp import EXACT_LIMITS
from tightfit.stages.combine.pipeline.allocation import Allocation, Stage, build_pattern
from tightfit.stages.combine.pipeline.allocator import (
    AllocationProblem,
    AllocationResult,
    allocate_within_period,
    load_allocator,
)
from tightfit.stages.combine.pipeline.contiguous import min_one_f_one_b_period, schedule_one_f_one_b
from tightfit.stages.combine.pipeline.layers import PipelineLayers, layers_of_chain
from tightfit.stages.combine.pipeline.periodic_schedule import schedule_periodic
from tightfit.stages.combine.pipeline.plan import (
    OPTIMALITY_TOLERANCE,
    PipelineSettings,
    plan_pipeline,
)
from tightfit.stages.simulate.pipeline_pattern import StageMemory, simulate_pattern
from tightfit.util.errors import ConfigError
from tightfit.util.strategies import ALLOCATORS, StrategyInfo

PAGE = Path(__file__).parents[4] / "docs/pipelines.md"


def answer_of(name: str, instance: AllocationProblem) -> float:
    """Ticks a batch, infinite where nothing was found; played by the simulator."""
    answer = allocate_within_period(load_allocator(name), instance)
    if answer is None:
        return math.inf
    allocation = answer.allocation
    pattern = build_pattern(allocation, answer.timing)
    simulate_pattern(pattern, allocation.bytes(), allocation.room(instance.memory))
    assert answer.bound <= answer.ticks * (1 + OPTIMALITY_TOLERANCE)
    assert instance.lower_bound <= answer.ticks
    return answer.ticks


def test_the_registry_knows_its_files() -> None:
    told = " ".join(PAGE.read_text().split())
    for name, about in ALLOCATORS.items():
        assert about.name == name and load_allocator(name).about is about
        assert f"- `{name}`: {about.summary}" in told
    with pytest.raises(ConfigError, match="a pipeline is planned by pipedream or gpipe or"):
        load_allocator("rotor")


@settings(deadline=None, max_examples=30)
@given(pipelines())
def test_none_is_worse_than_what_it_builds_on(pipeline: tuple[PipelineLayers, int, int]) -> None:
    layers, devices, memory = pipeline
    instance = AllocationProblem(layers, names_of(devices), memory)
    ticks = {name: answer_of(name, instance) for name in ALLOCATORS}
    assert ticks["one_f_one_b"] <= ticks["pipedream"]
    assert ticks["k_periodic"] <= ticks["one_f_one_b"]
    assert ticks["pipeline_ilp"] <= ticks["madpipe"] <= ticks["one_f_one_b"]


@settings(deadline=None, max_examples=20)
@given(pipelines())
def test_a_period_is_an_upper_limit(pipeline: tuple[PipelineLayers, int, int]) -> None:
    """A longer one changes no answer, and within a shorter one there is none."""
    layers, devices, memory = pipeline
    for name in ALLOCATORS:
        best = answer_of(name, AllocationProblem(layers, names_of(devices), memory))
        if math.isinf(best):
            continue
        longer = math.ceil(best) + layers.all_ticks // 8 + 4
        unchanged = AllocationProblem(layers, names_of(devices), memory, longer)
        assert answer_of(name, unchanged) == best
        if best > 4:
            shorter = AllocationProblem(layers, names_of(devices), memory, int(best) - 4)
            assert math.isinf(answer_of(name, shorter))


def test_one_device_for_all_is_found_where_madpipe_finds_nothing() -> None:
    """The bytes of layers suffice one by one, and not those of a stage of them."""
    zeros = np.zeros(3, np.int64)
    layers = PipelineLayers(
        forward=zeros,
        forward_work=zeros,
        send=zeros,
        receive=zeros,
        gradient=zeros,
        backward=np.array([0, 0, 1 << 40]),
        weight=np.array([0, 0, 3]),
        stored=np.array([0, 5, 1]),
        backward_work=np.array([0, 1, 0]),
        output=np.array([5, 0, 0]),
        buffer=zeros,
        tick=1.0,
    )
    assert math.isinf(answer_of("madpipe", AllocationProblem(layers, names_of(1), 9)))
    assert answer_of("pipeline_ilp", AllocationProblem(layers, names_of(1), 9)) == 1 << 40


def test_what_fits_is_found_where_it_takes_as_long_as_all_layers_in_a_row() -> None:
    """The last layer takes all the time, and only the first one has room beside it."""
    zeros = np.zeros(4, np.int64)
    layers = PipelineLayers(
        forward=np.array([0, 0, 0, 1]),
        forward_work=zeros,
        send=zeros,
        receive=zeros,
        gradient=zeros,
        backward=np.array([0, 0, 0, 2]),
        weight=np.array([0, 2, 6, 2]),
        stored=np.array([0, 0, 2, 4]),
        backward_work=zeros,
        output=zeros,
        buffer=zeros,
        tick=1.0,
    )
    instance = AllocationProblem(layers, names_of(2), 8)
    assert math.isinf(answer_of("one_f_one_b", instance))
    assert answer_of("madpipe", instance) == layers.max_ticks == 3


@settings(deadline=None, max_examples=12)
@given(pipelines(longest=4, most=2))
def test_no_allocation_beats_the_integer_programs(
    pipeline: tuple[PipelineLayers, int, int],
) -> None:
    """Every allocation is scheduled by itself, layer by layer."""
    layers, devices, memory = pipeline
    names = names_of(devices)
    instance = AllocationProblem(layers, names, memory)
    most = max(layers.all_ticks, 1) + 9
    best = math.inf
    for allocation in allocations(layers, names):
        found = schedule_periodic(allocation, memory, int(min(best, most)), EXACT_LIMITS)
        if found.timing is not None:
            best = found.timing.period
    ticks = answer_of("pipeline_ilp", instance)
    assert ticks == pytest.approx(best, abs=9)


@pytest.mark.parametrize("case", cases("pipeline_noncontiguous"), ids=lambda case: case["id"])
def test_the_known_optima_without_contiguity(case: dict[str, Any]) -> None:
    linked = case.get("expected_period_links")
    freely = case.get("expected_period_no_links", case.get("expected_period_noncontiguous"))
    memory = case.get("memory", ENOUGH)
    chain, names = chain_of_case(case), names_of(case["P"])
    wires = [] if linked is None else [(wire_of_case(case), linked)]
    for wire, expected in [*wires, (type(wire_of_case(case))(), freely)]:
        layers = layers_of_chain(chain, wire, 1, False)
        instance = AllocationProblem(layers, names, memory)
        ticks = answer_of("pipeline_ilp", instance)
        assert layers.seconds(1) * ticks == pytest.approx(expected, rel=1e-9)
        answer = load_allocator("pipeline_ilp").allocate(instance)
        assert answer is not None and answer.bound >= ticks * (1 - OPTIMALITY_TOLERANCE)
        if "expected_period_contiguous" in case:
            contiguous = answer_of("one_f_one_b", instance)
            assert layers.seconds(1) * contiguous == case["expected_period_contiguous"]


class Alone:
    """Everything on the first device."""

    about = StrategyInfo("alone", "everything on the first device")

    def allocate(self, instance: AllocationProblem) -> AllocationResult | None:
        stages = (Stage(1, instance.layers.count, 0),)
        allocation = Allocation(instance.layers, stages, instance.names)
        period = min_one_f_one_b_period(allocation, instance.memory)
        if period is None:
            return None
        timing = schedule_one_f_one_b(allocation, period)
        return AllocationResult(allocation, timing, instance.lower_bound, "none")


def test_an_allocator_from_outside_is_one_file_and_one_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module = types.ModuleType("alone")
    module.STRATEGY = Alone()  # type: ignore[attr-defined]
    monkeypatch.setitem(ALLOCATORS, "alone", Alone.about)
    monkeypatch.setitem(sys.modules, "tightfit.stages.combine.pipeline.allocators.alone", module)
    case = cases("pipeline_contiguous")[0]
    fleet = PipelineDevices(names_of(2), ENOUGH, wire_of_case(case))
    chain = chain_of_case(case)
    plan, pattern, sequence = plan_pipeline(
        chain, fleet, "two", load_allocator("alone"), PipelineSettings()
    )
    assert pattern is not None and not sequence and plan.status == "feasible"
    assert plan.period == sum(case["u_f"]) + sum(case["u_b"])
    assert [(stage.first, stage.last) for stage in plan.stages] == [(1, 4)]
    assert [device.busy for device in plan.devices] == [1.0, 0.0]


def test_a_stage_keeps_what_its_backward_reads_but_for_its_own_output() -> None:
    """The inputs of its layers where `abar` is the output alone; what is more of `abar`, too."""
    rows = [
        ChainPosition(1, 1, 1, 10, 17, 10, 0, 0, 100, 0, ""),
        ChainPosition(2, 1, 1, 20, 29, 21, 0, 0, 200, 0, ""),
        ChainPosition(3, 1, 1, 30, 30, 30, 3, 4, 300, 0, ""),
    ]
    layers = layers_of_chain(Chain(rows, 5, 6), wire_of_case({}), 2, True)
    assert layers.memory(1, 2, 3) == 2 * 300 + 3 * (5 + 17 + 29 - 20) + (20 + 21)
    assert layers.memory(2, 2, 1) == 2 * 200 + (10 + 9) + (10 + 10) + (20 + 21)
    assert layers.memory(3, 3, 1) == 2 * 300 + 20 + (20 + 21) + 4
    allocation = Allocation(layers, (Stage(1, 2, 0), Stage(3, 3, 1)), names_of(2))
    assert allocation.fixed() == [2 * 300 + 41, 2 * 300 + 41]
    assert allocation.bytes() == [StageMemory(31, 20, 21, 0, 0), StageMemory(20, 30, 30, 3, 4)]
