"""MadPipe's program, against the known cases, its recursion as printed, and all allocations."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.stages.combine.pipeline.pipelines import (
    allocations,
    cases,
    layers_of_case,
    names_of,
    pipelines,
)
from tightfit.stages.combine.pipeline.allocation import Allocation, build_pattern
from tightfit.stages.combine.pipeline.allocator import AllocationProblem, load_allocator
from tightfit.stages.combine.pipeline.allocators.madpipe import (
    CAREFUL_RULES,
    PRINTED_RULES,
    SOUND_RULES,
    MadpipeRules,
    allocate_for_target,
    min_layer_bytes,
)
from tightfit.stages.combine.pipeline.contiguous import bisect_min
from tightfit.stages.combine.pipeline.contiguous_dp import add_delay, count_periods
from tightfit.stages.combine.pipeline.layers import PipelineLayers
from tightfit.stages.simulate.pipeline_pattern import step_seconds


def min_load_allocation(
    layers: PipelineLayers,
    names: tuple[str, ...],
    memory: int,
    target: int,
    rules: MadpipeRules = SOUND_RULES,
) -> tuple[int, Allocation] | None:
    """MadPipe-DP(target): the least load in ticks of an allocation that fits, with one; None where
    none fits (M 4.2.2)."""
    high = layers.max_ticks
    found = allocate_for_target(layers, names, memory, target, high, rules)
    if found is None:
        return None
    return bisect_min(
        -1,
        high,
        found,
        lambda load: allocate_for_target(layers, names, memory, target, load, rules),
    )


@pytest.mark.parametrize("case", cases("madpipe_dp"), ids=lambda case: case["id"])
def test_the_known_values_of_the_program(case: dict[str, Any]) -> None:
    layers, names = layers_of_case(case), names_of(case["P"])
    target = int(case["target_period"] / layers.tick)
    found = min_load_allocation(layers, names, case["memory"], target, PRINTED_RULES)
    assert (found and layers.seconds(found[0])) == case["expected_period"]
    added = None if found is None else layers.seconds(found[1].load)
    assert added == case["note_period_if_shared_links_add_up"]


def as_printed(layers: PipelineLayers, devices: int, memory: int, target: int) -> float:
    """M 4.2.2, read line by line: T(L, P - 1, 0, 0, 0), with V' of C(k - 1)."""

    def takes(k: int, l: int, g: int) -> int:  # noqa: E741
        weights = layers.weights[l] - layers.weights[k - 1]
        kept = layers.kept[l] - layers.kept[k - 1]
        return int(weights + g * kept + layers.buffer[k - 1] + layers.buffer[l])

    @cache
    def best(l: int, p: int, t: int, m: int, v: int) -> float:  # noqa: E741
        if l == 0:
            return t
        found = math.inf
        for k in range(l, 0, -1) if p else (1,):
            load = int(layers.load[l] - layers.load[k - 1])
            g = max(-(-(v + load) // target), 1)
            after = add_delay(add_delay(v, load, target), int(layers.cut[k - 1]), target)
            over = int(layers.cut[k - 1])
            if p and takes(k, l, g) <= memory:
                found = min(found, max(load, over, best(k - 1, p - 1, t, m, after)))
            more = m + takes(k, l, g - 1)
            if more <= memory:
                found = min(found, max(t + load, over, best(k - 1, p, t + load, more, after)))
        return found

    return best(layers.count, devices - 1, 0, 0, 0)


def without_temporary(layers: PipelineLayers) -> PipelineLayers:
    from dataclasses import replace

    nothing = layers.weight * 0
    return replace(layers, forward_work=nothing, backward_work=nothing)


@settings(deadline=None, max_examples=60)
@given(pipelines(), st.integers(1, 8))
def test_the_program_is_the_printed_recursion(
    pipeline: tuple[PipelineLayers, int, int], share: int
) -> None:
    layers, devices, memory = without_temporary(pipeline[0]), *pipeline[1:]
    target = max(layers.all_ticks * share // 8, 1)
    expected = as_printed(layers, devices, memory, target)
    found = min_load_allocation(layers, names_of(devices), memory, target, PRINTED_RULES)
    assert (math.inf if found is None else found[0]) == expected


def fits(allocation: Allocation, memory: int, period: int, rules: MadpipeRules) -> bool:
    """Whether an allocation, a stage for each layer, is one that the program takes: neighbors on
    normal devices are one stage, on the special one they may be several."""
    layers, special = allocation.layers, len(allocation.names) - 1
    if max(allocation.loads().values()) > period:
        return False
    merged = allocation.merged()
    own = [stage for stage in merged.stages if stage.device != special]
    if len({stage.device for stage in own}) < len(own):
        return False
    return any(
        _fits_split(layers, stages, special, memory, period, rules)
        for stages in _splits(list(merged.stages), special)
    )


def _splits(stages: list[Any], special: int) -> list[list[Any]]:
    """All ways to cut stages on the special device further."""
    made: list[list[Any]] = [[]]
    for stage in stages:
        pieces = [[stage]]
        if stage.device == special:
            inner = range(stage.first, stage.last)
            pieces = []
            for mask in range(1 << len(inner)):
                cuts = [cut for bit, cut in enumerate(inner) if mask >> bit & 1]
                ends = [*cuts, stage.last]
                starts = [stage.first, *(cut + 1 for cut in cuts)]
                pieces.append(
                    [
                        stage._replace(first=first, last=last)
                        for first, last in zip(starts, ends, strict=True)
                    ]
                )
        made = [[*before, *piece] for before in made for piece in pieces]
    return made


def _fits_split(
    layers: PipelineLayers,
    stages: list[Any],
    special: int,
    memory: int,
    period: int,
    rules: MadpipeRules,
) -> bool:
    delay, taken, seen, work = 0, 0, False, 0
    for number in range(len(stages) - 1, -1, -1):
        stage = stages[number]
        after = stages[number + 1] if number + 1 < len(stages) else None
        before = stages[number - 1] if number else None
        crosses = after is not None and after.device != stage.device
        if crosses:
            delay = add_delay(delay, int(layers.cut[stage.last]), period)
        delay = add_delay(
            delay, int(layers.load[stage.last] - layers.load[stage.first - 1]), period
        )
        flying = max(count_periods(delay, period), 1)
        own = int(layers.weights[stage.last] - layers.weights[stage.first - 1])
        kept = int(layers.kept[stage.last] - layers.kept[stage.first - 1])
        buffers = int(layers.buffer[stage.last]) * crosses
        if before is not None and before.device != stage.device:
            buffers += int(layers.buffer[stage.first - 1])
        stage_work = int(layers.work[stage.first : stage.last + 1].max())
        if stage.device == special:
            if seen and not rules.count_all_in_flight:
                flying = max(flying - 1, 1)
            seen = True
            taken += own + flying * kept + buffers
            work = stage_work
            partly = taken - (buffers - int(layers.buffer[stage.last]) * crosses)
            if partly + work > memory or taken > memory:
                return False
        elif own + flying * kept + buffers + stage_work > memory:
            return False
    return True


@settings(deadline=None, max_examples=40)
@given(pipelines(longest=4), st.sampled_from([SOUND_RULES, CAREFUL_RULES]))
def test_the_least_period_is_that_of_all_allocations(
    pipeline: tuple[PipelineLayers, int, int], rules: MadpipeRules
) -> None:
    """At a few periods: the program finds an allocation where one of all is good, and only then."""
    layers, devices, memory = pipeline
    names = names_of(devices)
    for eighths in (2, 3, 4, 6, 8):
        period = max(layers.all_ticks * eighths // 8, 1)
        found = allocate_for_target(layers, names, memory, period, period, rules)
        others = _all_numberings(layers, names)
        assert (found is not None) == any(fits(o, memory, period, rules) for o in others)
        if found is not None:
            assert found.load <= period
            assert fits(found, memory, period, rules)


def _all_numberings(layers: PipelineLayers, names: tuple[str, ...]) -> list[Allocation]:
    """All allocations with every choice of the special device."""
    made = []
    for allocation in allocations(layers, names):
        for special in range(len(names)):
            swap = {special: len(names) - 1, len(names) - 1: special}
            stages = tuple(
                stage._replace(device=swap.get(stage.device, stage.device))
                for stage in allocation.stages
            )
            made.append(Allocation(layers, stages, names))
    return made


@settings(deadline=None, max_examples=30)
@given(pipelines())
def test_less_load_takes_a_longer_target(pipeline: tuple[PipelineLayers, int, int]) -> None:
    """MadPipe-DP falls as its target rises (M 4.2.3)."""
    layers, devices, memory = pipeline
    loads = []
    for eighths in (1, 2, 4, 8):
        target = max(layers.all_ticks * eighths // 8, 1)
        found = min_load_allocation(layers, names_of(devices), memory, target)
        loads.append(math.inf if found is None else found[0])
    assert loads == sorted(loads, reverse=True)


def test_what_layers_add_at_least() -> None:
    case = {"L": 2, "u_f": [0, 1, 1], "u_b": [0, 1, 1], "a": [3, 5, 0], "w": [0, 7, 11],
            "weight_copies": 1}  # fmt: skip
    layers = layers_of_case(case)
    four = int(4 / layers.tick)
    assert min_layer_bytes(layers, four).tolist() == [0, 10, 26]
    assert min_layer_bytes(layers, four // 4).tolist() == [0, 16, 32]


@settings(deadline=None, max_examples=30)
@given(pipelines(), st.integers(1, 6))
def test_a_step_of_some_microbatches_is_no_slower_than_a_contiguous_one(
    pipeline: tuple[PipelineLayers, int, int], microbatches: int
) -> None:
    layers, devices, memory = pipeline
    instance = AllocationProblem(layers, names_of(devices), memory, microbatches=microbatches)
    contiguous = load_allocator("one_f_one_b").allocate(instance)
    found = load_allocator("madpipe").allocate(instance)
    if contiguous is None:
        return
    assert found is not None
    ours, theirs = (
        step_seconds(build_pattern(each.allocation, each.timing), microbatches)
        for each in (found, contiguous)
    )
    assert ours <= theirs * (1 + 1e-12)
