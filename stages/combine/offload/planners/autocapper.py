"""AUTOCAPPER: sequences of Rotor for more memory than there is, capped by what leaves (S 4.3)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from tightfit.schemas.offloaders import OFFLOADERS
from tightfit.schemas.strategies import SLOTS
from tightfit.stages.combine.chain.frontier import keep_all_sequence
from tightfit.stages.combine.chain.table import Table, build_table
from tightfit.stages.combine.chain.ways import Ways
from tightfit.stages.combine.offload.gaps import Computation, Gap, computation
from tightfit.stages.combine.offload.plans import OffloadInstance

LIMITS = 40
"""Memory limits that sequences are made for, from the budget to what keeping everything takes."""


class Autocapper:
    """The fastest of some sequences for more memory than there is."""

    about = OFFLOADERS["autocapper"]
    reorders = True

    def sequences(self, instance: OffloadInstance) -> Iterator[tuple[Computation, Sequence[Gap]]]:
        """Sequences from the one for the budget to the one that keeps everything; what leaves is
        what has to (`plans.capped`)."""
        ways = instance.ways
        whole = computation(ways, keep_all_sequence(ways))
        yield from capped_sequences(ways, rotor_table(ways, whole), whole, instance.budget)


def rotor_table(ways: Ways, whole: Computation) -> Table:
    """Rotor's program up to what keeping everything takes."""
    return build_table(ways, whole.peak - ways.throughout, SLOTS)


def capped_sequences(
    ways: Ways, table: Table, whole: Computation, budget: int, limits: int = LIMITS
) -> Iterator[tuple[Computation, Sequence[Gap]]]:
    """Sequences for `limits` memories from the budget up, each with no gaps."""
    yield whole, ()
    times, known = table.times, set()
    for limit in np.linspace(whole.peak, budget, limits, endpoint=True).astype(np.int64):
        room = times.slots.room(int(limit) - ways.throughout)
        if room < 0 or not np.isfinite(times.lost[room]) or float(times.lost[room]) in known:
            continue
        known.add(float(times.lost[room]))
        yield computation(ways, table.sequence(room)), ()


PLANNER = Autocapper()
