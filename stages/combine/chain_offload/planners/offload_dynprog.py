"""DYNPROG: which activations leave is decided by a dynamic program (S 3.3.3).

The program is exact where communications are fractional and all offloads come before all
prefetches. A plan's transfers are whole, so the fastest few of its sets are placed and played, and
that of `offload_greedy`: a set that is best with fractional communications need not be with whole
ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tightfit.schemas.sequence import StoredItem
from tightfit.stages.combine.chain.frontier import keep_all_sequence
from tightfit.stages.combine.chain_offload.fractional_transfers import (
    ActivationSet,
    dynprog_offload_sets,
    greedy_offload_set,
)
from tightfit.stages.combine.chain_offload.placement import (
    ComputeSequence,
    IdleInterval,
    analyze_compute_sequence,
)
from tightfit.stages.combine.chain_offload.planner import ChainOffloadProblem, intervals_around_loss
from tightfit.util.strategies import OFFLOADERS

MAX_SETS = 32
"""Sets that are placed and played."""


class OffloadDynprog:
    """The fastest of the sets of the dynamic program."""

    about = OFFLOADERS["offload_dynprog"]
    reorders = True

    def sequences(
        self, instance: ChainOffloadProblem
    ) -> Iterator[tuple[ComputeSequence, Sequence[IdleInterval]]]:
        """The one sequence that runs nothing again, with each of the sets."""
        ways, budget = instance.ways, instance.budget
        computed = analyze_compute_sequence(ways, keep_all_sequence(ways))
        yield (
            computed,
            intervals_around_loss(
                computed, _stores(greedy_offload_set(ways, budget, computed.peak))
            ),
        )
        for chosen in dynprog_offload_sets(ways, budget, instance.link.bandwidth, MAX_SETS).sets:
            yield computed, intervals_around_loss(computed, _stores(chosen))


def _stores(positions: ActivationSet) -> set[StoredItem]:
    """All that is kept of positions."""
    return {(position > 0, position) for position in positions}


STRATEGY = OffloadDynprog()
