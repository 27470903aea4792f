"""Schedules of a given allocation, against 1F1B* and against all orders of a shared device."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations, pairwise, product
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.stages.combine.pipeline.pipelines import contiguous, names_of, pipelines
from tightfit.stages.combine.milp import EXACT_LIMITS
from tightfit.stages.combine.pipeline.allocation import (
    Allocation,
    PatternTiming,
    Stage,
    build_pattern,
)
from tightfit.stages.combine.pipeline.contiguous import min_one_f_one_b_period
from tightfit.stages.combine.pipeline.layers import PipelineLayers
from tightfit.stages.combine.pipeline.periodic_schedule import schedule_periodic, shortest_period
from tightfit.stages.simulate.pipeline_pattern import simulate_pattern
from tightfit.util.errors import ScheduleError


@settings(deadline=None, max_examples=40)
@given(pipelines(longest=4))
def test_of_a_contiguous_allocation_it_is_1f1b(pipeline: tuple[PipelineLayers, int, int]) -> None:
    """S Theorem 15, but for temporary bytes, which 1F1B* counts in the direction with more."""
    layers, devices, memory = pipeline
    for allocation in contiguous(layers, names_of(devices)):
        best = min_one_f_one_b_period(allocation, memory)
        most = max(layers.all_ticks, 1) + 1
        found = schedule_periodic(allocation, memory, most, EXACT_LIMITS)
        if found.timing is None:
            assert best is None
        else:
            assert best is None or found.timing.period <= best
            if not layers.work.any():
                assert found.timing.period == best
            assert found.bound <= found.timing.period


class Orders:
    """All orders of the lanes of an allocation, as a schedule's whole numbers."""

    def __init__(self, allocation: Allocation, memory: int) -> None:
        self.allocation, self.memory = allocation, memory
        tasks = allocation.tasks
        self.count = len(tasks)
        there = [(number, True) for number in range(self.count)]
        back = [(number, False) for number in range(self.count - 1, -1, -1)]
        lanes: dict[str, list[int]] = {}
        for index, (number, _) in enumerate([*there, *back]):
            lanes.setdefault(tasks[number].lane, []).append(index)
        self.ticks = [
            tasks[number].forward if forward else tasks[number].backward
            for number, forward in [*there, *back]
        ]
        self.pairs = [pair for lane in lanes.values() for pair in combinations(lane, 2)]

    def period(self, firsts: Sequence[int], below: int) -> int | None:
        """The least period that an order allows, None where it is not below `below` or does not
        fit."""
        size = 2 * self.count
        arcs = [(x, y, self.ticks[x], 0) for x, y in pairwise(range(size))]
        for (x, y), first in zip(self.pairs, firsts, strict=True):
            arcs.append((x, y, max(self.ticks[x], 1), first))
            arcs.append((y, x, max(self.ticks[y], 1), 1 - first))
        found = shortest_period(size, arcs, 1)
        if found is None or found[0] >= below:
            return None
        period, times = found
        forward = [times[n] - times[0] for n in range(self.count)]
        backward = [times[size - 1 - n] - times[0] for n in range(self.count)]
        pattern = build_pattern(self.allocation, PatternTiming(period, forward, backward))
        try:
            simulate_pattern(pattern, self.allocation.bytes(), self.allocation.room(self.memory))
        except ScheduleError:
            return None
        return period


SLACK = 9
"""Ticks that operations without time may be apart in the orders above."""


@settings(deadline=None, max_examples=5)
@given(pipelines(longest=3))
def test_of_two_stages_on_one_device_no_order_is_better(
    pipeline: tuple[PipelineLayers, int, int],
) -> None:
    layers, _, memory = pipeline
    if layers.count < 2:
        return
    devices = (0, 0, 1)[: layers.count]
    stages = tuple(Stage(number, number, d) for number, d in enumerate(devices, start=1))
    allocation = Allocation(layers, stages, names_of(2))
    most = max(layers.all_ticks, 1) + SLACK
    orders = Orders(allocation, memory)
    best: int | None = None
    for firsts in product((0, -1, -2), repeat=len(orders.pairs)):
        best = orders.period(firsts, best or most) or best
    found = schedule_periodic(allocation, memory, most, EXACT_LIMITS)
    if best is None:
        assert found.timing is None
    else:
        assert found.timing is not None
        assert abs(found.timing.period - best) <= SLACK
        assert found.bound <= found.timing.period


@settings(deadline=None, max_examples=15)
@given(pipelines(longest=4), st.randoms(use_true_random=False))
def test_of_shared_devices_and_links_no_sampled_order_is_better(
    pipeline: tuple[PipelineLayers, int, int], random: Random
) -> None:
    layers, _, memory = pipeline
    devices = (0, 1, 0, 1)[: layers.count]
    stages = tuple(Stage(number, number, d) for number, d in enumerate(devices, start=1))
    allocation = Allocation(layers, stages, names_of(2))
    most = max(layers.all_ticks, 1) + SLACK
    found = schedule_periodic(allocation, memory, most, EXACT_LIMITS)
    least = found.timing.period if found.timing is not None else most
    assert found.bound <= least
    orders = Orders(allocation, memory)
    for _ in range(60):
        firsts = [random.choice((0, 0, -1, -1, -2)) for _ in orders.pairs]
        sampled = orders.period(firsts, most)
        assert sampled is None or sampled >= least - SLACK


def test_the_largest_ratio_of_a_cycle() -> None:
    arcs = [(0, 1, 3, 0), (1, 0, 4, 1), (1, 2, 5, 0), (2, 0, 5, 2)]
    assert shortest_period(3, arcs, 1) == (7, [0, 3, 8])
    assert shortest_period(3, arcs, 9) == (9, [0, 3, 8])
    assert shortest_period(2, [(0, 1, 3, 0), (1, 0, 1, 0)], 1) is None
    # 13 in 3 periods, rounded up to a whole tick
    assert shortest_period(2, [(0, 1, 6, 1), (1, 0, 7, 2)], 1) == (5, [0, 1])
