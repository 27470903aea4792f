"""GREEDY: the first activations leave (S 3.2.2)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tightfit.schemas.offloaders import OFFLOADERS
from tightfit.stages.combine.chain.frontier import keep_all_sequence
from tightfit.stages.combine.offload.gaps import Computation, Gap, computation
from tightfit.stages.combine.offload.plans import OffloadInstance, gaps_of
from tightfit.stages.combine.offload.sets import greedy_set


class OffloadGreedy:
    """The first activations that together are as much as is too much; the next ones too where the
    budget does not hold then."""

    about = OFFLOADERS["offload_greedy"]
    reorders = False

    def sequences(self, instance: OffloadInstance) -> Iterator[tuple[Computation, Sequence[Gap]]]:
        """The one sequence that runs nothing again."""
        ways = instance.ways
        computed = computation(ways, keep_all_sequence(ways))
        first = greedy_set(ways, instance.budget, computed.peak)
        yield computed, gaps_of(computed, {(position > 0, position) for position in first})


PLANNER = OffloadGreedy()
