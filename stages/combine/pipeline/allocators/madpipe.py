"""MadPipe (M 4.2, S ch. 7): a dynamic program with one special device, the search for a period, the
schedule by an integer program."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np

from tightfit.stages.combine.array_types import IntArray
from tightfit.stages.combine.milp import EXACT_LIMITS
from tightfit.stages.combine.pipeline.allocation import (
    Allocation,
    Stage,
    build_pattern,
    select_stage_options,
)
from tightfit.stages.combine.pipeline.allocator import (
    AllocationProblem,
    AllocationResult,
    allocate_within_period,
)
from tightfit.stages.combine.pipeline.allocators.one_f_one_b import STRATEGY as CONTIGUOUS
from tightfit.stages.combine.pipeline.layers import PipelineLayers, StageOption
from tightfit.stages.combine.pipeline.madpipe_dp import LabelLimits, LayerSizes, label_stages
from tightfit.stages.combine.pipeline.periodic_schedule import schedule_periodic
from tightfit.stages.simulate.pipeline_pattern import step_seconds
from tightfit.util.solver_engines import ENGINE_TITLES
from tightfit.util.strategies import ALLOCATORS

MAX_ROUNDS = 10
"""Periods that are tried for a long chain."""
SHORT_CHAIN_LAYERS = 24
"""Layers up to which periods are tried until none is left between two, and places are many."""
FINE_GRID, COARSE_GRID, RECOMPUTE_GRID = (32, 8, 6), (24, 6, 2), (12, 4, 2)
"""Places for labels by load and by memory, and labels in each, of short and of long chains, and
where stages may compute again."""


@dataclass(frozen=True)
class MadpipeRules:
    """How memory and links are counted.

    `printed` does as M prints. Every two stages meet over a link, and a link carries the largest of
    its cuts. The special device stores one batch less for each stage than fly, and takes all in one
    stage where no other device is left. Else neighbors on the special device meet in its
    memory, and the cuts of a link add up. The special device then stores for each stage as many
    batches as it must at the moment when its last one does, or, where `all_flying`, all that are in
    flight: less is seldom possible.
    """

    printed: bool = False
    count_all_in_flight: bool = False


SOUND_RULES, CAREFUL_RULES, PRINTED_RULES = (
    MadpipeRules(),
    MadpipeRules(count_all_in_flight=True),
    MadpipeRules(printed=True),
)


def allocate_for_target(
    layers: PipelineLayers,
    names: tuple[str, ...],
    memory: int,
    target: int,
    most: int,
    rules: MadpipeRules = SOUND_RULES,
) -> Allocation | None:
    """An allocation with loads of at most `most` ticks that fits `memory` bytes a device with as
    many batches in flight as a period of `target` ticks takes; None where none was found. The
    special device is the last one."""
    normal = len(names) - 1
    menu = layers.stage_options or layers.keep_all_options
    recomputes = layers.stage_options is not None
    sizes = LayerSizes(
        np.cumsum(menu.least), layers.weights, min_layer_bytes(layers, target, rules),
        layers.buffer, layers.cut, menu.begin, menu.ticks, menu.stored, menu.work,
    )  # fmt: skip
    places = (
        RECOMPUTE_GRID
        if recomputes
        else FINE_GRID
        if layers.count <= SHORT_CHAIN_LAYERS
        else COARSE_GRID
    )
    found = label_stages(
        sizes,
        LabelLimits(
            normal,
            memory,
            target,
            most,
            rules.printed,
            rules.count_all_in_flight,
            *places,
            recomputes,
        ),
    )
    if not len(found):
        return None
    stages, device, first = list[Stage](), 0, 1
    for last, special, _ in found:
        number = normal if special else device
        device += 0 if special else 1
        stages.append(Stage(first, int(last), number))
        first = int(last) + 1
    return Allocation(
        layers, tuple(stages), names, select_stage_options(layers, stages, found[:, 2].tolist())
    )


def candidate_allocations(
    layers: PipelineLayers, names: tuple[str, ...], memory: int, below: int
) -> list[tuple[int, Allocation]]:
    """Allocations that might be scheduled within a period of less than `below` ticks, with the
    period at which the program takes them; the most promising first."""
    with ThreadPoolExecutor(2) as pool:
        hopeful, careful = pool.map(
            lambda rules: _bisect_periods(layers, names, memory, below, rules),
            (SOUND_RULES, CAREFUL_RULES),
        )
    middles = (hopeful[len(hopeful) // 2 :], careful[len(careful) // 2 :])
    return [*hopeful[:1], *careful[:1], *(middle[0] for middle in middles if middle)]


def _bisect_periods(
    layers: PipelineLayers, names: tuple[str, ...], memory: int, below: int, rules: MadpipeRules
) -> list[tuple[int, Allocation]]:
    """M Algorithm 1, the shortest period first. MadPipe-DP falls as its target rises, so that the
    best of both is where they meet: the range of periods is halved between those with and without
    an allocation that fits."""
    low = max(math.floor(layers.least_period(len(names))), 1) - 1
    high, found = below, list[tuple[int, Allocation]]()
    long = layers.count > SHORT_CHAIN_LAYERS or layers.stage_options is not None
    for number in range(MAX_ROUNDS if long else 64):
        middle = (low + high) // 2 if number else high - 1
        if middle <= low:
            break
        tried = allocate_for_target(layers, names, memory, middle, middle, rules)
        if tried is not None:
            high = middle
            found.append((middle, tried))
        elif not found:
            break
        else:
            low = middle
    return found[::-1]


def min_layer_bytes(
    layers: PipelineLayers, target: int, rules: MadpipeRules = SOUND_RULES
) -> IntArray:
    """The bytes that layers 1..l add to their devices at least, by l. A device stores of each
    layer, all the time, one batch less than are in flight. In flight are as many as periods of
    `target` ticks pass from the layer's forward to its backward. Where stages may compute again,
    weights alone."""
    if layers.stage_options is not None:
        return layers.weights
    later = layers.load[-1] - layers.load[:-1]
    flying = -(-later // target) - 1
    if not rules.printed:
        flying = np.maximum(flying, 1)
    stored = np.concatenate([[0], flying * layers.stored[1:]])
    return layers.weights + np.cumsum(np.maximum(stored, 0))


MAX_SCHEDULED = 4
"""Allocations of the program that are scheduled, the shortest periods first."""
SCHEDULE_LIMITS = replace(EXACT_LIMITS, nodes=1_000, checks=300, seconds=10.0)


class Madpipe:
    """The best schedule of the program's allocations, and no worse than the contiguous one: by its
    period or, if it is known of how many microbatches a step is, by the time of the step."""

    about = ALLOCATORS["madpipe"]

    def allocate(self, instance: AllocationProblem) -> AllocationResult | None:
        """The best allocation found, None where none fits. Where stages may compute again, it is
        no worse than where they may not."""
        answers = [self._best(instance)]
        if instance.layers.stage_options is not None:
            keeping = replace(instance.layers, stage_options=None)
            answers.append(self._best(replace(instance, layers=keeping)))
        found = [answer for answer in answers if answer is not None]
        best = min(found, key=lambda answer: _answer_cost(instance, answer), default=None)
        return None if best is None else replace(best, bound=instance.lower_bound)

    def _best(self, instance: AllocationProblem) -> AllocationResult | None:
        layers, memory = instance.layers, instance.memory
        limits = replace(SCHEDULE_LIMITS, engine=instance.engine)
        contiguous = allocate_within_period(CONTIGUOUS, instance)
        answers = [] if contiguous is None else [contiguous]
        below = max(layers.max_ticks, 1) + 1 if contiguous is None else contiguous.timing.period
        if instance.period is not None:
            below = min(below, instance.period + 1)
        clock = False
        seen: set[tuple[tuple[Stage, ...], tuple[StageOption, ...]]] = set()
        for least, allocation in candidate_allocations(layers, instance.names, memory, below):
            key = (allocation.stages, allocation.inner)
            if least >= below or len(seen) == MAX_SCHEDULED or key in seen:
                continue
            seen.add(key)
            found = schedule_periodic(allocation, memory, below, limits)
            clock = clock or found.clock
            if found.timing is not None:
                below = found.timing.period
                bound = instance.lower_bound
                answers.append(AllocationResult(allocation, found.timing, bound, ""))
        if not answers:
            return None
        solver = f"dynamic program, {ENGINE_TITLES[instance.engine] if seen else '1F1B*'}"
        chosen = min(answers, key=lambda answer: _answer_cost(instance, answer))
        return replace(chosen, bound=instance.lower_bound, solver=solver, clock=clock)


def _answer_cost(instance: AllocationProblem, answer: AllocationResult) -> tuple[float, float]:
    """What an allocation is chosen by: the seconds of a step of the microbatches, if it is known
    how many these are, then the ticks a batch."""
    if instance.microbatches is None:
        return 0.0, answer.ticks
    pattern = build_pattern(answer.allocation, answer.timing)
    return step_seconds(pattern, instance.microbatches), answer.ticks


STRATEGY = Madpipe()
