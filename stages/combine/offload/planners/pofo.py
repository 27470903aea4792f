"""POFO with AUTOCAPPER and OPPORTUNIST: the fastest of their plans and of Rotor's (S ch. 4)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tightfit.schemas.offloaders import OFFLOADERS
from tightfit.stages.combine.chain.frontier import keep_all_sequence
from tightfit.stages.combine.offload.gaps import Computation, Gap, computation
from tightfit.stages.combine.offload.planners.autocapper import capped_sequences, rotor_table
from tightfit.stages.combine.offload.planners.opportunist import opportune_sequences
from tightfit.stages.combine.offload.plans import OffloadInstance, gaps_of
from tightfit.stages.combine.offload.pofo import pofo
from tightfit.stages.combine.offload.spans import build_spans

SLOTS = 50
"""S 4.4.1 finds that more change nothing."""
SHARES = (1.0, 0.95)
"""Of the budget, for which plans are made: whole transfers need more than fractional ones."""
MOST = 8
"""Plans of each that are placed and played."""
SLACK = 1.02
"""How much slower than the fastest plan so far one with fractional communications may look."""


class Pofo:
    """The fastest plan of the program of `stages.combine.offload.pofo`, of `autocapper` and of
    `opportunist`."""

    about = OFFLOADERS["pofo"]
    reorders = True

    def sequences(self, instance: OffloadInstance) -> Iterator[tuple[Computation, Sequence[Gap]]]:
        """What fewest transfers do comes first."""
        ways, link, budget = instance.ways, instance.link, instance.budget
        whole = computation(ways, keep_all_sequence(ways))
        table = rotor_table(ways, whole)
        yield from capped_sequences(ways, table, whole, budget)
        yield from opportune_sequences(ways, link, table, budget)
        spans = build_spans(ways, budget, min(instance.slots, SLOTS), link.bandwidth)
        known = set()
        for share in SHARES:
            for plan in pofo(ways, spans, int(budget * share), instance.fastest() * SLACK, MOST):
                computed = computation(ways, plan.sequence)
                if (key := (str(plan.sequence), tuple(plan.leaves))) not in known:
                    known.add(key)
                    yield computed, gaps_of(computed, plan.leaves)


PLANNER = Pofo()
