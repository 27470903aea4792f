"""GREEDY: the first activations leave (S 3.2.2)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tightfit.stages.combine.chain.frontier import keep_all_sequence
from tightfit.stages.combine.chain_offload.fractional_transfers import greedy_offload_set
from tightfit.stages.combine.chain_offload.placement import (
    ComputeSequence,
    IdleInterval,
    analyze_compute_sequence,
)
from tightfit.stages.combine.chain_offload.planner import ChainOffloadProblem, intervals_around_loss
from tightfit.util.strategies import OFFLOADERS


class OffloadGreedy:
    """The first activations that together are as much as is too much; the next ones too where the
    budget does not hold then."""

    about = OFFLOADERS["offload_greedy"]
    reorders = False

    def sequences(
        self, instance: ChainOffloadProblem
    ) -> Iterator[tuple[ComputeSequence, Sequence[IdleInterval]]]:
        """The one sequence that runs nothing again."""
        ways = instance.ways
        computed = analyze_compute_sequence(ways, keep_all_sequence(ways))
        first = greedy_offload_set(ways, instance.budget, computed.peak)
        yield (
            computed,
            intervals_around_loss(computed, {(position > 0, position) for position in first}),
        )


STRATEGY = OffloadGreedy()
