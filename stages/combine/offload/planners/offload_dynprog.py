"""DYNPROG: which activations leave is decided by a dynamic program (S 3.3.3).

The program is exact where communications are fractional and all offloads come before all
prefetches. A plan's transfers are whole, so the fastest few of its sets are placed and played, and
that of `offload_greedy`: a set that is best with fractional communications need not be with whole
ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tightfit.schemas.offloaders import OFFLOADERS
from tightfit.schemas.sequence import Store
from tightfit.stages.combine.chain.frontier import keep_all_sequence
from tightfit.stages.combine.offload.gaps import Computation, Gap, computation
from tightfit.stages.combine.offload.plans import OffloadInstance, gaps_of
from tightfit.stages.combine.offload.sets import Positions, dynprog_sets, greedy_set

SETS = 32
"""Sets that are placed and played."""


class OffloadDynprog:
    """The fastest of the sets of the dynamic program."""

    about = OFFLOADERS["offload_dynprog"]
    reorders = True

    def sequences(self, instance: OffloadInstance) -> Iterator[tuple[Computation, Sequence[Gap]]]:
        """The one sequence that runs nothing again, with each of the sets."""
        ways, budget = instance.ways, instance.budget
        computed = computation(ways, keep_all_sequence(ways))
        yield computed, gaps_of(computed, _stores(greedy_set(ways, budget, computed.peak)))
        for chosen in dynprog_sets(ways, budget, instance.link.bandwidth, SETS).sets:
            yield computed, gaps_of(computed, _stores(chosen))


def _stores(positions: Positions) -> set[Store]:
    """All that is kept of positions."""
    return {(position > 0, position) for position in positions}


PLANNER = OffloadDynprog()
