"""1F1B* and the best contiguous allocations, against the known cases and all partitions."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings

from tests.stages.combine.pipeline.pipelines import (
    cases,
    contiguous,
    layers_of_case,
    names_of,
    pipelines,
)
from tightfit.stages.combine.pipeline.allocation import build_pattern
from tightfit.stages.combine.pipeline.contiguous import (
    ALL_BATCHES,
    BatchFraction,
    assign_groups,
    batches_in_flight,
    find_partition,
    min_device_memory,
    min_one_f_one_b_period,
    min_period_partition,
    schedule_one_f_one_b,
)
from tightfit.stages.combine.pipeline.layers import NO_LIMIT, PipelineLayers
from tightfit.stages.simulate.pipeline_pattern import simulate_pattern


@pytest.mark.parametrize("case", cases("pipeline_nca"), ids=lambda case: case["id"])
def test_groups_are_the_fewest_batches_in_flight(case: dict[str, Any]) -> None:
    quarters = [int(4 * (f + b)) for f, b in zip(case["u_f"], case["u_b"], strict=True)]
    assert assign_groups(quarters[1:], int(4 * case["period"])) == case["expected_nca"][1:]


@pytest.mark.parametrize("case", cases("pipeline_contiguous"), ids=lambda case: case["id"])
def test_the_known_contiguous_optima(case: dict[str, Any]) -> None:
    layers, names = layers_of_case(case), names_of(case["P"])
    blind = min_period_partition(layers.without_memory(), names, NO_LIMIT)
    assert blind is not None
    assert layers.seconds(blind[0]) == case["expected_period_no_memory"]
    if case["memory"] is None:
        return
    found = min_period_partition(layers, names, case["memory"])
    assert (found and layers.seconds(found[0])) == case["expected_period_memory"]
    if found is not None:
        period, allocation = found
        pattern = build_pattern(allocation, schedule_one_f_one_b(allocation, period))
        simulate_pattern(pattern, allocation.bytes(), allocation.room(case["memory"]))


@settings(deadline=None, max_examples=60)
@given(pipelines())
def test_no_partition_beats_the_one_that_is_found(
    pipeline: tuple[PipelineLayers, int, int],
) -> None:
    layers, devices, memory = pipeline
    names = names_of(devices)
    periods = [
        min_one_f_one_b_period(allocation, memory) for allocation in contiguous(layers, names)
    ]
    best = min((period for period in periods if period is not None), default=None)
    found = min_period_partition(layers, names, memory)
    assert (found and found[0]) == best
    if found is None:
        assert min_device_memory(layers, names) > memory
        assert min_period_partition(layers, names, min_device_memory(layers, names)) is not None
        assert min_period_partition(layers, names, min_device_memory(layers, names) - 1) is None
    else:
        period, allocation = found
        assert min_one_f_one_b_period(allocation, memory) == period
        assert min_device_memory(layers, names) <= memory


@settings(deadline=None, max_examples=60)
@given(pipelines())
def test_what_the_referee_says_of_1f1b_is_what_was_counted(
    pipeline: tuple[PipelineLayers, int, int],
) -> None:
    """Batches in flight are the groups, and bytes those of `Layers.memory` but for the temporary
    bytes of an operation that does not run at the peak."""
    layers, devices, _ = pipeline
    for allocation in contiguous(layers, names_of(devices)):
        loads = [task.load for task in allocation.tasks]
        for period in {max(*loads, 1), sum(loads) // 2 + max(*loads, 1), sum(loads) + 1}:
            timing = schedule_one_f_one_b(allocation, period)
            played = simulate_pattern(
                build_pattern(allocation, timing), allocation.bytes(), allocation.room(NO_LIMIT)
            )
            groups = assign_groups(loads, period)
            own = [g for g, task in zip(groups, allocation.tasks, strict=True) if not task.transfer]
            assert played.in_flight == own
            for stage, group in zip(allocation.stages, own, strict=True):
                counted = layers.memory(stage.first, stage.last, group)
                work = int(layers.work[stage.first : stage.last + 1].max())
                assert counted == played.peaks[allocation.names[stage.device]]
                assert counted - work >= 0


@settings(deadline=None, max_examples=40)
@given(pipelines())
def test_with_every_kth_batch_left_out(pipeline: tuple[PipelineLayers, int, int]) -> None:
    """The pattern can be run, fits, and has so many batches in flight as windows of batches say."""
    layers, devices, memory = pipeline
    names = names_of(devices)
    for k in (1, 2, 3):
        kept = BatchFraction(k, k + 1)
        found = min_period_partition(layers, names, memory, kept)
        if found is None:
            assert find_partition(layers, names, memory, layers.all_ticks + 1, kept) is None
            continue
        period, allocation = found
        pattern = build_pattern(allocation, schedule_one_f_one_b(allocation, period, k, k + 1))
        played = simulate_pattern(pattern, allocation.bytes(), allocation.room(memory))
        groups = assign_groups([task.load for task in allocation.tasks], period)
        own = [g for g, task in zip(groups, allocation.tasks, strict=True) if not task.transfer]
        assert played.in_flight == [batches_in_flight(group, k, k + 1) for group in own]
        if period > 1:
            smaller = find_partition(layers, names, memory, period - 1, kept)
            assert smaller is None


def test_windows_of_batches() -> None:
    for kept in range(1, 5):
        turns = kept + 1
        there = [number % turns < kept for number in range(10 * turns)]
        for group in range(1, 3 * turns):
            most = max(sum(there[at : at + group]) for at in range(turns))
            assert batches_in_flight(group, kept, turns) == most
    assert batches_in_flight(7, ALL_BATCHES.kept, ALL_BATCHES.turns) == 7


def test_the_instance_that_needs_k_periods() -> None:
    """S Theorem 16: k of k+1 batches take 2 (1 + 1/k) each, and no fewer are as fast."""
    for k in (2, 3, 4):
        count = k + 1
        weights = [1, *range(1, k + 1)]
        case = {
            "L": count,
            "u_f": [0] + [1] * count,
            "u_b": [0] + [1] * count,
            "a": [1] * (count + 1),
            "w": [0, *weights],
            "weight_copies": 1,
            "buffers": False,
        }
        layers, names, memory = layers_of_case(case), names_of(count), k + 1
        best = {}
        for kept in (ALL_BATCHES, *(BatchFraction(j, j + 1) for j in range(1, k + 2))):
            found = min_period_partition(layers, names, memory, kept)
            if found is not None:
                best[kept.kept if kept.turns > 1 else 0] = (
                    layers.seconds(found[0]) * kept.turns / kept.kept
                )
        assert best[k] == 2 * (1 + 1 / k) == min(best.values())
        assert all(best[j] > best[k] for j in best if 0 < j < k)
