"""Computing again inside of stages, against all cuts with all persistent inner plans."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.stages.combine.pipeline.pipelines import chains, contiguous, names_of
from tightfit.schemas.block_options import BlockOption
from tightfit.schemas.chain import Chain, ChainPosition
from tightfit.schemas.pipeline_devices import PipelineLink
from tightfit.schemas.sequence import ChainOperation
from tightfit.stages.combine.chain.frontier import ChainFrontier
from tightfit.stages.combine.chain.options import build_chain_problem
from tightfit.stages.combine.milp import EXACT_LIMITS
from tightfit.stages.combine.pipeline.allocation import Allocation, build_pattern
from tightfit.stages.combine.pipeline.allocator import AllocationProblem, load_allocator
from tightfit.stages.combine.pipeline.allocators.madpipe import allocate_for_target
from tightfit.stages.combine.pipeline.contiguous import (
    assign_groups,
    find_partition,
    min_device_memory,
    min_period_partition,
)
from tightfit.stages.combine.pipeline.layers import PipelineLayers, StageOption, layers_of_chain
from tightfit.stages.combine.pipeline.periodic_schedule import schedule_periodic
from tightfit.stages.combine.pipeline.stage_recompute import (
    StageRecomputePlanner,
    build_stage_options,
)
from tightfit.stages.simulate.pipeline_pattern import simulate_pattern
from tightfit.util.errors import ConfigError, ScheduleError

Ops = list[ChainOperation]
ENOUGH = 10**4
"""Rows that none of these segments has."""


def again(first: int, last: int) -> Iterator[Ops]:
    """All persistent sequences of a segment once the gradient of its last output is there."""
    if first > last:
        yield []
        return
    for rest in again(first + 1, last):
        yield [ChainOperation("F_all", first), *rest, ChainOperation("B", first)]
    for split in range(first, last):
        for ahead, behind in product(again(split + 1, last), again(first, split)):
            yield [*passed(first, split), *ahead, *behind]


def stage_plans(first: int, last: int) -> Iterator[tuple[Ops, Ops]]:
    """All persistent plans of a stage: its forward and its backward."""
    if first > last:
        yield [], []
        return
    for there, back in stage_plans(first + 1, last):
        yield [ChainOperation("F_all", first), *there], [*back, ChainOperation("B", first)]
    for split in range(first, last):
        for (there, back), behind in product(stage_plans(split + 1, last), again(first, split)):
            yield [*passed(first, split), *there], [*back, *behind]
    for back in again(first, last):
        yield passed(first, last), back


def passed(first: int, last: int) -> Ops:
    return [
        ChainOperation("F_ck", first),
        *(ChainOperation("F_none", p) for p in range(first + 1, last + 1)),
    ]


def figures(chain: Chain, first: int, last: int, there: Ops, back: Ops) -> tuple[int, int, float]:
    """Stored bytes, the most bytes of a batch, and seconds of a plan, played by hand."""
    rows = {row.position: row for row in chain.positions}
    sizes = [chain.a_0, *(row.a for row in chain.positions)]
    live = {("input", first - 1): sizes[first - 1]}
    peak = saved = sizes[first - 1]
    seconds = 0.0
    for number, action in enumerate([*there, *back]):
        row, l = rows[action.block], action.block  # noqa: E741
        if number == len(there):
            live.pop(("output", last), None)
            saved = sum(live.values())
        here = sum(live.values())
        if action.action == "B":
            peak = max(peak, here + row.o_b)
            seconds += row.u_b
            live.pop(("kept", l))
            live.pop(("output", l - 1), None)
        else:
            seconds += row.u_f
            made = row.abar if action.action == "F_all" else row.a
            peak = max(peak, here + made + row.o_f)
            if action.action == "F_all":
                live["kept", l] = row.abar - (row.a if l == last else 0)
            else:
                live["output", l] = 0 if l == last else row.a
            if action.action == "F_none":
                live.pop(("output", l - 1), None)
    return saved, peak, seconds


def all_figures(chain: Chain, first: int, last: int) -> list[tuple[int, int, float]]:
    found = {figures(chain, first, last, *plan) for plan in stage_plans(first, last)}
    return [
        one
        for one in found
        if not any(
            other != one and all(x <= y for x, y in zip(other, one, strict=True)) for other in found
        )
    ]


@settings(deadline=None, max_examples=30)
@given(chains(4))
def test_inner_plans_are_those_that_no_other_betters(chain: Chain) -> None:
    layers = layers_of_chain(chain, PipelineLink(), 1, False)
    inner = StageRecomputePlanner(chain, layers, most=ENOUGH)
    for first in range(1, layers.count + 1):
        for last in range(first, layers.count + 1):
            found = set()
            for row in range(len(inner.rows(first, last))):
                plan = inner.plan(first, last, row)
                inner.check(first, last, plan)
                seconds = layers.seconds(plan.forward + plan.backward)
                found.add((plan.stored, plan.stored + plan.work, round(seconds, 6)))
                played = figures(chain, first, last, list(plan.there), list(plan.back))
                assert (played[0], played[1], round(played[2], 6)) in found
            expected = {(s, p, round(t, 6)) for s, p, t in all_figures(chain, first, last)}
            assert found == expected


def inside(layers: PipelineLayers, chain: Chain, most: int = ENOUGH) -> PipelineLayers:
    return replace(
        layers,
        stage_options=build_stage_options(StageRecomputePlanner(chain, layers, most=most), layers),
    )


def fits_somehow(
    chain: Chain, layers: PipelineLayers, names: tuple[str, ...], memory: int, period: int
) -> bool:
    """Whether any cuts with any inner plans fit; or stages that keep everything, as M counts."""
    plans: dict[tuple[int, int], list[StageOption]] = {}
    for allocation in contiguous(layers, names):
        stages = [(stage.first, stage.last) for stage in allocation.stages]
        for first, last in stages:
            if (first, last) not in plans:
                plans[first, last] = [
                    StageOption(math.ceil(t / layers.tick), 0, s, p - s)
                    for s, p, t in all_figures(chain, first, last)
                ]
                alone = Allocation(layers, allocation.stages, names).bytes()
                held = alone[stages.index((first, last))]
                ticks = int(layers.load[last] - layers.load[first - 1])
                work = max(held.forward, held.backward)
                plans[first, last].append(StageOption(ticks, 0, held.stored, work))
        for chosen in product(*(plans[stage] for stage in stages)):
            made = Allocation(layers, allocation.stages, names, chosen)
            loads = [task.load for task in made.tasks]
            if max(loads) > period:
                continue
            groups = assign_groups(loads, period)
            flying = [g for t, g in zip(made.tasks, groups, strict=True) if not t.transfer]
            if all(
                fixed + count * plan.stored + plan.work <= memory
                for fixed, count, plan in zip(made.fixed(), flying, chosen, strict=False)
            ):
                return True
    return False


@settings(deadline=None, max_examples=25)
@given(
    chains(3),
    st.integers(1, 3),
    st.integers(5, 60),
    st.booleans(),
    st.sampled_from([1.0, 4.0, math.inf]),
)
def test_the_least_period_is_that_of_all_cuts_and_all_inner_plans(
    chain: Chain, devices: int, memory: int, buffers: bool, bandwidth: float
) -> None:
    plain = layers_of_chain(chain, PipelineLink(bandwidth), 1, buffers)
    layers, names = inside(plain, chain), names_of(devices)
    for sixths in (2, 3, 4, 6, 9, 12):
        period = max(layers.all_ticks * sixths // 6, 1)
        found = find_partition(layers, names, memory, period)
        assert (found is not None) == fits_somehow(chain, plain, names, memory, period)


@settings(deadline=None, max_examples=20)
@given(chains(5), st.integers(1, 3), st.integers(5, 70), st.booleans())
def test_it_is_never_slower_and_fits_less_memory(
    chain: Chain, devices: int, memory: int, buffers: bool
) -> None:
    plain = layers_of_chain(chain, PipelineLink(2.0), 3, buffers)
    layers, names = inside(plain, chain, most=12), names_of(devices)
    assert min_device_memory(layers, names) <= min_device_memory(plain, names)
    for name in ("one_f_one_b", "k_periodic", "madpipe"):
        ticks = []
        for given_layers in (plain, layers):
            instance = AllocationProblem(given_layers, names, memory)
            answer = load_allocator(name).allocate(instance)
            ticks.append(math.inf if answer is None else answer.ticks)
            if answer is not None:
                allocation = answer.allocation
                pattern = build_pattern(allocation, answer.timing)
                simulate_pattern(pattern, allocation.bytes(), allocation.room(memory))
                assert instance.lower_bound <= answer.bound * (1 + 1e-9)
        assert ticks[1] <= ticks[0]


def uniform(count: int) -> Chain:
    """Layers that keep ten times what they give to the next one."""
    rows = [ChainPosition(n, 1, 2, 1, 10, 1, 0, 0, 0, 0, "") for n in range(1, count + 1)]
    return Chain(rows, 1, 1)


def test_fits_where_nothing_else_does() -> None:
    chain = uniform(8)
    plain = layers_of_chain(chain, PipelineLink(), 3, False)
    layers, names = inside(plain, chain, most=32), names_of(2)
    assert min_period_partition(plain, names, 30) is None
    found = min_period_partition(layers, names, 30)
    assert found is not None
    period, allocation = found
    assert layers.seconds(period) < 24
    assert all(plan.there for plan in allocation.inner)


def test_a_plan_that_says_less_than_it_takes_is_refused() -> None:
    chain = uniform(3)
    layers = layers_of_chain(chain, PipelineLink(), 3, False)
    inner = StageRecomputePlanner(chain, layers)
    plan = inner.plan(1, 3, 0)
    with pytest.raises(ScheduleError, match=f"stores {plan.stored} bytes, not {plan.stored - 1}"):
        inner.check(1, 3, replace(plan, stored=plan.stored - 1))
    with pytest.raises(ScheduleError, match=f"takes {plan.stored + plan.work} bytes"):
        inner.check(1, 3, replace(plan, work=plan.work - 1))
    with pytest.raises(ScheduleError, match="ends too early"):
        inner.check(1, 3, replace(plan, back=plan.back[:-1]))


def test_rows_that_are_too_many_are_thinned() -> None:
    chain = uniform(12)
    layers = layers_of_chain(chain, PipelineLink(), 3, False)
    many, few = StageRecomputePlanner(chain, layers), StageRecomputePlanner(chain, layers, most=6)
    for first in (1, 5):
        rows = few.rows(first, 12)
        assert len(rows) <= 8
        for row in range(len(rows)):
            few.check(first, 12, few.plan(first, 12, row))
        assert rows[0, 2] == many.rows(first, 12)[0, 2] == rows[:, 2].min()


def option(
    number: int, save: int, peaks: tuple[int, int], times: tuple[float, float]
) -> BlockOption:
    return BlockOption("block", number, "", save, *peaks, *times, 0.0, [], [])


BLOCK = [
    option(0, 1, (6, 0), (1, 0)),
    option(1, 10, (10, 10), (1, 2)),
    option(2, 4, (10, 10), (1, 2.5)),
]
"""Ways of the positions of `uniform`: nothing, everything, and less for half a second more."""


def test_options_of_blocks_save_more_for_less_time() -> None:
    chain = uniform(6)
    rows = [replace(row, label="block") for row in chain.positions[:-1]] + chain.positions[-1:]
    labeled = Chain(rows, chain.a_0, chain.delta_0)
    plain = layers_of_chain(chain, PipelineLink(), 1, False)
    without, inner = (
        StageRecomputePlanner(chain, plain),
        StageRecomputePlanner(labeled, plain, {"block": BLOCK}),
    )
    slower = min_period_partition(
        replace(plain, stage_options=build_stage_options(without, plain)), names_of(2), 39
    )
    found = min_period_partition(
        replace(plain, stage_options=build_stage_options(inner, plain)), names_of(2), 39
    )
    assert slower is not None and found is not None
    assert plain.seconds(found[0]) == 10 and plain.seconds(slower[0]) == 11
    used = [o for plan in found[1].inner for o in plan.there if o.action == "F"]
    assert 2 in {operation.option for operation in used}
    for stage, own in zip(found[1].stages, found[1].inner, strict=True):
        if own.there:
            inner.check(stage.first, stage.last, own)


def test_options_that_keep_the_state_of_random_numbers_are_refused() -> None:
    chain = uniform(2)
    rows = [replace(row, label="block") for row in chain.positions]
    random = [replace(BLOCK[0], save=9), *BLOCK[1:]]
    layers = layers_of_chain(chain, PipelineLink(), 1, False)
    with pytest.raises(ConfigError, match="that keep the state of random numbers are not for pipe"):
        StageRecomputePlanner(Chain(rows, 1, 1), layers, {"block": random})


@settings(deadline=None, max_examples=15)
@given(chains(5), st.integers(2, 3), st.integers(20, 70))
def test_the_special_device_may_compute_again(chain: Chain, devices: int, memory: int) -> None:
    """What the program gives can be run: the simulator plays its schedules and its inner plans."""
    plain = layers_of_chain(chain, PipelineLink(4.0), 1, True)
    inner, names = StageRecomputePlanner(chain, plain), names_of(devices)
    layers = replace(plain, stage_options=build_stage_options(inner, plain))
    for period in (layers.all_ticks // 2 + 1, layers.all_ticks + 1):
        allocation = allocate_for_target(layers, names, memory, period, period)
        if allocation is None:
            assert find_partition(plain, names, memory, period) is None
            continue
        assert allocation.load <= period
        for stage, own in zip(allocation.stages, allocation.inner, strict=True):
            if own.there:
                inner.check(stage.first, stage.last, own)
        found = schedule_periodic(allocation, memory, 4 * layers.max_ticks, EXACT_LIMITS)
        if found.timing is not None:
            pattern = build_pattern(allocation, found.timing)
            simulate_pattern(pattern, allocation.bytes(), allocation.room(memory))


def test_a_chain_that_is_too_long_is_refused() -> None:
    chain = uniform(401)
    with pytest.raises(ConfigError, match="has 401 layers, and stages compute again in chains of"):
        StageRecomputePlanner(chain, layers_of_chain(chain, PipelineLink(), 3, False))


def test_layers_that_are_alike_share_their_plans() -> None:
    """A long chain of equal layers has as many different segments as lengths."""
    chain = uniform(40)
    layers = layers_of_chain(chain, PipelineLink(), 3, False)
    inner = StageRecomputePlanner(chain, layers, most=6)
    menu = build_stage_options(inner, layers)
    assert menu.ticks[menu.begin[3, 9]] == menu.ticks[menu.begin[20, 26]] == layers.load[7]
    plan = inner.plan(1, 40, len(inner.rows(1, 40)) - 1)
    inner.check(1, 40, plan)
    assert plan.stored < 40


@settings(deadline=None, max_examples=25)
@given(chains(5), st.integers(5, 60))
def test_on_a_single_device_it_is_rotor(chain: Chain, memory: int) -> None:
    """Where gradients take nothing, and the loss has no output."""
    rows = [replace(row, delta=0, weight=0) for row in chain.positions]
    loss = replace(rows[-1], a=0)
    alone = Chain([*rows[:-1], loss], chain.a_0, 0)
    frontier = ChainFrontier(build_chain_problem(alone))
    best = frontier.within(memory)
    layers = inside(layers_of_chain(alone, PipelineLink(), 1, False), alone)
    found = min_period_partition(layers, names_of(1), memory)
    assert (found is None) == (best is None)
    if found is not None and best is not None:
        assert layers.seconds(found[0]) == pytest.approx(best.seconds, abs=1e-6)
