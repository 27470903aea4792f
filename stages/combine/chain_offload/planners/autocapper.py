"""AUTOCAPPER: sequences of Rotor for more memory than there is, capped by what leaves (S 4.3)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from tightfit.stages.combine.chain.dp_table import ChainTable, build_chain_table
from tightfit.stages.combine.chain.frontier import keep_all_sequence
from tightfit.stages.combine.chain.options import ChainProblem
from tightfit.stages.combine.chain_offload.placement import (
    ComputeSequence,
    IdleInterval,
    analyze_compute_sequence,
)
from tightfit.stages.combine.chain_offload.planner import ChainOffloadProblem
from tightfit.util.strategies import BUDGET_SLOTS, OFFLOADERS

MEMORY_LIMIT_COUNT = 40
"""Memory limits that sequences are made for, from the budget to what keeping everything takes."""


class Autocapper:
    """The fastest of some sequences for more memory than there is."""

    about = OFFLOADERS["autocapper"]
    reorders = True

    def sequences(
        self, instance: ChainOffloadProblem
    ) -> Iterator[tuple[ComputeSequence, Sequence[IdleInterval]]]:
        """Sequences from the one for the budget to the one that keeps everything; what leaves is
        what has to (`plans.capped`)."""
        ways = instance.ways
        whole = analyze_compute_sequence(ways, keep_all_sequence(ways))
        yield from capped_sequences(ways, build_rotor_table(ways, whole), whole, instance.budget)


def build_rotor_table(ways: ChainProblem, whole: ComputeSequence) -> ChainTable:
    """Rotor's program up to what keeping everything takes."""
    return build_chain_table(ways, whole.peak - ways.always_resident, BUDGET_SLOTS)


def capped_sequences(
    ways: ChainProblem,
    table: ChainTable,
    whole: ComputeSequence,
    budget: int,
    limits: int = MEMORY_LIMIT_COUNT,
) -> Iterator[tuple[ComputeSequence, Sequence[IdleInterval]]]:
    """Sequences for `limits` memories from the budget up, each with no gaps."""
    yield whole, ()
    times, known = table.times, set()
    for limit in np.linspace(whole.peak, budget, limits, endpoint=True).astype(np.int64):
        room = times.slots.room(int(limit) - ways.always_resident)
        if room < 0 or not np.isfinite(times.lost[room]) or float(times.lost[room]) in known:
            continue
        known.add(float(times.lost[room]))
        yield analyze_compute_sequence(ways, table.sequence(room)), ()


STRATEGY = Autocapper()
