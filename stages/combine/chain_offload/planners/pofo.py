"""POFO with AUTOCAPPER and OPPORTUNIST: the fastest of their plans and of Rotor's (S ch. 4)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tightfit.stages.combine.chain.frontier import keep_all_sequence
from tightfit.stages.combine.chain_offload.placement import (
    ComputeSequence,
    IdleInterval,
    analyze_compute_sequence,
)
from tightfit.stages.combine.chain_offload.planner import ChainOffloadProblem, intervals_around_loss
from tightfit.stages.combine.chain_offload.planners.autocapper import (
    build_rotor_table,
    capped_sequences,
)
from tightfit.stages.combine.chain_offload.planners.opportunist import opportunist_sequences
from tightfit.stages.combine.chain_offload.pofo import build_span_table, solve_pofo
from tightfit.util.strategies import OFFLOADERS

MAX_SLOTS = 50
"""S 4.4.1 finds that more change nothing."""
BUDGET_SHARES = (1.0, 0.95)
"""Of the budget, for which plans are made: whole transfers need more than fractional ones."""
MAX_PLANS = 8
"""Plans of each that are placed and played."""
SLACK = 1.02
"""How much slower than the fastest plan so far one with fractional communications may look."""


class Pofo:
    """The fastest plan of the program of `stages.combine.chain_offload.pofo`, of `autocapper` and
    of `opportunist`."""

    about = OFFLOADERS["pofo"]
    reorders = True

    def sequences(
        self, instance: ChainOffloadProblem
    ) -> Iterator[tuple[ComputeSequence, Sequence[IdleInterval]]]:
        """What fewest transfers do comes first."""
        ways, link, budget = instance.ways, instance.link, instance.budget
        whole = analyze_compute_sequence(ways, keep_all_sequence(ways))
        table = build_rotor_table(ways, whole)
        yield from capped_sequences(ways, table, whole, budget)
        yield from opportunist_sequences(ways, link, table, budget)
        spans = build_span_table(ways, budget, min(instance.slots, MAX_SLOTS), link.bandwidth)
        known = set()
        for share in BUDGET_SHARES:
            for plan in solve_pofo(
                ways, spans, int(budget * share), instance.fastest() * SLACK, MAX_PLANS
            ):
                computed = analyze_compute_sequence(ways, plan.sequence)
                if (key := (str(plan.sequence), tuple(plan.leaves))) not in known:
                    known.add(key)
                    yield computed, intervals_around_loss(computed, plan.leaves)


STRATEGY = Pofo()
