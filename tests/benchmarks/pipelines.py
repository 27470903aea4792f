"""Pipelines: what planning long chains takes, and the figures of M drawn again."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from tests.benchmarks.long_chains import random_chain
from tests.benchmarks.madpipe_networks import DEEP, NETWORKS, Network, chain_of_network
from tightfit.schemas.chain import Chain
from tightfit.schemas.pipeline_devices import PipelineLink
from tightfit.stages.combine.pipeline.allocation import Allocation, build_pattern
from tightfit.stages.combine.pipeline.allocator import AllocationProblem, load_allocator
from tightfit.stages.combine.pipeline.contiguous import min_one_f_one_b_period, min_period_partition
from tightfit.stages.combine.pipeline.layers import PipelineLayers, layers_of_chain
from tightfit.stages.combine.pipeline.stage_recompute import (
    StageRecomputePlanner,
    build_stage_options,
)
from tightfit.stages.simulate.pipeline_pattern import simulate_pattern

DEVICES = range(2, 9)
MEMORIES = range(3, 17)
"""GB a device (M 5.1), as the two below."""
BANDWIDTHS = (12e9, 24e9)
SOME_DEVICES, SOME_MEMORIES = (2, 4, 8), (4, 8, 12, 16)
"""Where stages may compute again, at the first bandwidth."""
DEEP_BANDWIDTH, DEEP_MEMORIES = 50e9, (5, 8, 12, 16, 24, 32, 40, 60, 80)
"""Bytes a second of a link at 400 Gb/s, and GB a device."""
COPIES = 3
LENGTHS, COUNTS = (50, 100, 200, 400), (4, 8, 16)
SHARE = 2.0
"""Of what all layers store for a batch over the devices, in chains for timings."""
GROWTH = (
    "| layers | " + " | ".join(f"{count} devices" for count in COUNTS) + " |\n|---|---|---|---|"
)
HEAD = (
    "| GB | "
    + " | ".join(network.title for network in NETWORKS)
    + " | all |\n|"
    + "---|" * (len(NETWORKS) + 2)
)


@dataclass(frozen=True)
class Case:
    """Seconds a batch on devices of `memory` GB: of `pipedream` with 1F1B*, blind to memory or
    counting as many batches in flight as there are devices (`guessing`), of `one_f_one_b`, of
    `madpipe`, and of this one with stages that compute again, None in most cases; inf where nothing
    fits."""

    network: str
    memory: int
    pipedream: float
    guessing: float
    contiguous: float
    madpipe: float
    inside: float | None


def rows_of_growth() -> Iterator[str]:
    """Seconds that `madpipe` takes, a row a length, a column a number of devices."""
    for length in LENGTHS:
        chain = random_chain(length)
        stored = sum(row.abar for row in chain.positions)
        cells = []
        for count in COUNTS:
            layers = layers_of_chain(chain, PipelineLink(BANDWIDTHS[0]), COPIES, True)
            start = time.perf_counter()
            _period("madpipe", layers, count, int(stored * SHARE / count))
            cells.append(f"{time.perf_counter() - start:.1f}")
        yield f"| {length} | " + " | ".join(cells) + " |"


def lines_of_figures(folder: Path) -> Iterator[str]:
    """Tables of ratios by memory and network: means, the largest and how many cases have one."""
    cases: list[Case] = []
    for network in NETWORKS:
        start = time.perf_counter()
        cases += cases_of_network(network, chain_of_network(network, folder))
        yield f"{network.title}: {time.perf_counter() - start:.0f} s"
    yield "\nPeriod of madpipe over that of pipedream with 1F1B*:\n"
    yield HEAD
    yield from _rows(cases, lambda case: (case.madpipe, case.pipedream))
    yield "\nThe same, where pipedream counts as many batches in flight as devices:\n"
    yield HEAD
    yield from _rows(cases, lambda case: (case.madpipe, case.guessing))
    yield "\nPeriod of madpipe over that of one_f_one_b:\n"
    yield HEAD
    yield from _rows(cases, lambda case: (case.madpipe, case.contiguous))
    yield "\nPeriod of madpipe with stages that compute again over that of madpipe:\n"
    yield HEAD
    some = [case for case in cases if case.inside is not None]
    yield from _rows(some, lambda case: (case.inside or math.inf, case.madpipe))


def lines_of_deep(folder: Path) -> Iterator[str]:
    """Seconds a batch of a deep model on eight devices, a row a memory."""
    chain = chain_of_network(DEEP, folder)
    layers = layers_of_chain(chain, PipelineLink(DEEP_BANDWIDTH), COPIES, True)
    start = time.perf_counter()
    again = replace(
        layers, stage_options=build_stage_options(StageRecomputePlanner(chain, layers), layers)
    )
    taken = time.perf_counter() - start
    yield f"\n{DEEP.title}, {layers.count} layers, inner plans in {taken:.0f} s:\n"
    yield "| GB | pipedream | one_f_one_b | madpipe | one_f_one_b, again | madpipe, again |"
    yield "|---|---|---|---|---|---|"
    for memory in DEEP_MEMORIES:
        plain = [(name, layers) for name in ("pipedream", "one_f_one_b", "madpipe")]
        both = [*plain, ("one_f_one_b", again), ("madpipe", again)]
        found = (_period(name, given, 8, memory * 10**9) for name, given in both)
        cells = (f"{one:.3f}" if math.isfinite(one) else "-" for one in found)
        yield f"| {memory} | " + " | ".join(cells) + " |"


def cases_of_network(network: Network, chain: Chain) -> list[Case]:
    """All cases of a network."""
    found = []
    for bandwidth in BANDWIDTHS:
        layers = layers_of_chain(chain, PipelineLink(bandwidth), COPIES, True)
        again = None
        if bandwidth == BANDWIDTHS[0]:
            again = replace(
                layers,
                stage_options=build_stage_options(StageRecomputePlanner(chain, layers), layers),
            )
        for count in DEVICES:
            for memory in MEMORIES:
                size = memory * 10**9
                found.append(
                    Case(
                        network.title,
                        memory,
                        _period("pipedream", layers, count, size),
                        _guessed(layers, count, size),
                        _period("one_f_one_b", layers, count, size),
                        _period("madpipe", layers, count, size),
                        _period("madpipe", again, count, size)
                        if again and count in SOME_DEVICES and memory in SOME_MEMORIES
                        else None,
                    )
                )
    return found


def _period(name: str, layers: PipelineLayers, count: int, memory: int) -> float:
    """Seconds a batch, played by the simulator; inf where nothing fits."""
    names = tuple(f"cuda:{number}" for number in range(count))
    answer = load_allocator(name).allocate(AllocationProblem(layers, names, memory))
    if answer is None:
        return math.inf
    allocation = answer.allocation
    pattern = build_pattern(allocation, answer.timing)
    simulate_pattern(pattern, allocation.bytes(), allocation.room(memory))
    return answer.ticks * layers.tick


def _guessed(layers: PipelineLayers, count: int, memory: int) -> float:
    """Seconds a batch of 1F1B* for the partition that PipeDream finds where every layer is taken to
    store `count` batches (M 5.1); inf where there is none or it does not fit."""
    names = tuple(f"cuda:{number}" for number in range(count))
    stored = count * layers.stored
    guess = replace(layers, weight=layers.weight + stored, stored=np.zeros_like(stored))
    found = min_period_partition(guess, names, memory)
    if found is None:
        return math.inf
    ticks = min_one_f_one_b_period(Allocation(layers, found[1].stages, names), memory)
    return math.inf if ticks is None else ticks * layers.tick


def _rows(cases: Sequence[Case], pair: Callable[[Case], tuple[float, float]]) -> Iterator[str]:
    for memory in [*sorted({case.memory for case in cases}), None]:
        there = [case for case in cases if memory in (None, case.memory)]
        groups = [[case for case in there if case.network == n.title] for n in NETWORKS]
        cells = [_cell(map(pair, group)) for group in [*groups, there]]
        yield f"| {'all' if memory is None else memory} | " + " | ".join(cells) + " |"


def _cell(pairs: Iterable[tuple[float, float]]) -> str:
    """The geometric mean of the ratios of cases that have both, the largest one, and how many fit:
    in both, in the first one alone, in none."""
    known = list(pairs)
    ratios = [one / other for one, other in known if math.isfinite(one) and math.isfinite(other)]
    alone = sum(math.isfinite(one) and not math.isfinite(other) for one, other in known)
    counts = f"{len(ratios)}+{alone} of {len(known)}"
    if not ratios:
        return f"- ({counts})"
    mean = math.exp(math.fsum(map(math.log, ratios)) / len(ratios))
    return f"{mean:.2f}, at most {max(ratios):.2f} ({counts})"
