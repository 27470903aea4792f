"""The plans of a chain with a link to the host, for any budget, each played by the simulator."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol, cast

import numpy as np

from tightfit.schemas.frontier import TIME_TOLERANCE
from tightfit.schemas.link import HostLink
from tightfit.schemas.sequence import ChainOperation, StoredItem
from tightfit.stages.combine.chain.frontier import ChainFrontier, ChainPlan, keep_all_sequence
from tightfit.stages.combine.chain.options import ChainProblem
from tightfit.stages.combine.chain_offload.lower_bound import offload_lower_bound, peak_operation
from tightfit.stages.combine.chain_offload.placement import (
    ComputeSequence,
    IdleInterval,
    OffloadedStore,
    analyze_compute_sequence,
    insert_transfers,
    order_by_production,
    place_offload_intervals,
)
from tightfit.stages.combine.chain_offload.simulate import (
    ChainOffloadSimulation,
    simulate_chain_offload,
)
from tightfit.util.errors import ConfigError
from tightfit.util.strategies import OFFLOADERS, StrategyInfo, load_strategy_module

MAX_REORDER_OPERATIONS = 4_000
"""Operations that are placed and played to find a better order of what is sent."""
MAX_REORDER_DISTANCE = 3
"""How many places later than when it is made something may be tried to be sent, at a time."""


@dataclass(frozen=True)
class ChainOffloadProblem:
    """What planners plan: a chain with a link, within a `budget` in bytes. Programs may cut memory
    into `slots`. `fastest` says what the fastest plan so far takes, at first that without a link,
    infinite where there is none."""

    ways: ChainProblem
    link: HostLink
    budget: int
    slots: int
    fastest: Callable[[], float]


@dataclass(frozen=True)
class ChainOffloadPlan(ChainPlan):
    """A plan with transfers, as the simulator played it."""

    simulation: ChainOffloadSimulation


class ChainOffloadPlanner(Protocol):
    """An algorithm that plans a chain with a link."""

    @property
    def about(self) -> StrategyInfo:
        """What is known of it."""

    @property
    def reorders(self) -> bool:
        """Whether what leaves may be sent in another order than it is made in."""

    def sequences(
        self, instance: ChainOffloadProblem
    ) -> Iterable[tuple[ComputeSequence, Sequence[IdleInterval]]]:
        """Sequences without transfers, each with gaps in which something leaves."""


class ChainOffloadPlans:
    """The plans of one planner for a chain and a link, at any budget in bytes."""

    def __init__(
        self, planner: ChainOffloadPlanner, ways: ChainProblem, link: HostLink, slots: int
    ) -> None:
        self.planner, self.ways, self.link, self.slots = planner, ways, link, slots
        self._without = ChainFrontier(ways) if planner.about.recomputes else None
        self.keep_all = self._played(keep_all_sequence(ways))
        self._known: dict[int, ChainOffloadPlan | None] = {}

    @property
    def smallest_budget(self) -> int:
        """The smallest budget known to work, in bytes."""
        smallest = self._without.smallest_budget if self._without else self.keep_all.peak
        if self.link.bandwidth == 0:
            return smallest
        for computed in self._leaving():
            least = min_peak_with_offload(computed)
            if least < smallest and self._placed(computed, computed.gaps, least) is not None:
                smallest = least
        return smallest

    def needed(self) -> tuple[int, ChainOperation]:
        """The most that one operation needs, in bytes, and which it is."""
        return peak_operation(self.ways, self.planner.about.recomputes)

    def within(self, budget: int) -> ChainOffloadPlan | None:
        """The fastest plan of at most `budget` bytes; None where none was found."""
        if budget >= self.keep_all.peak:
            return self.keep_all
        if budget not in self._known:
            self._known[budget] = self._fastest(budget)
        return self._known[budget]

    def bound(self, budget: int) -> float:
        """Seconds that no sequence within the budget goes below. Without a bandwidth it is that of
        persistent sequences where the planner computes again."""
        if budget >= self.keep_all.peak:
            return self.keep_all.seconds
        if self.link.bandwidth == 0 and self._without is not None:
            return self._without.bound(budget)
        return offload_lower_bound(
            self.ways, self.link.bandwidth, budget, self.planner.about.recomputes
        )

    def _fastest(self, budget: int) -> ChainOffloadPlan | None:
        without = self._without.within(budget) if self._without else None
        best = None if without is None else self._played(without.sequence)
        if self.link.bandwidth == 0:
            return best
        least = self.bound(budget)

        def seconds() -> float:
            return math.inf if best is None else best.seconds

        source = None
        instance = ChainOffloadProblem(self.ways, self.link, budget, self.slots, seconds)
        for computed, gaps in self.planner.sequences(instance):
            found = self._placed(computed, gaps, budget)
            if found is not None and found is _faster_plan(best, found):
                best, source = found, (computed, gaps)
            if seconds() <= least * (1 + TIME_TOLERANCE):
                return best
        waits = best is not None and best.simulation.waited > 0
        if best is not None and source is not None and waits and self.planner.reorders:
            best = self._reordered(best, *source, budget)
        return best if best is not None else self._all_leave(budget)

    def _leaving(self) -> list[ComputeSequence]:
        """The sequences that need the least where all leaves that can."""
        found = [analyze_compute_sequence(self.ways, keep_all_sequence(self.ways))]
        if self.planner.about.recomputes:
            found.append(analyze_compute_sequence(self.ways, checkpoint_all_sequence(self.ways)))
        return found

    def _all_leave(self, budget: int) -> ChainOffloadPlan | None:
        """The fastest plan in which all leaves that can."""
        best: ChainOffloadPlan | None = None
        for computed in self._leaving():
            best = _faster_plan(best, self._placed(computed, computed.gaps, budget))
        return best

    def _reordered(
        self,
        best: ChainOffloadPlan,
        computed: ComputeSequence,
        gaps: Collection[IdleInterval],
        budget: int,
    ) -> ChainOffloadPlan:
        """A plan in which what leaves is sent in a better order, where some neighbors or nearly so
        that change places make one: what is made later may be larger, or needed less."""
        chosen = add_intervals_to_fit(computed, gaps, budget) or []
        order = order_by_production(chosen)
        left, apart = MAX_REORDER_OPERATIONS // len(computed.steps), 1
        while left > 0 and apart <= min(MAX_REORDER_DISTANCE, len(order) - 1):
            improved = False
            for place in range(len(order) - apart):
                moved = [*order[:place], *order[place + 1 : place + apart + 1], order[place]]
                moved += order[place + apart + 1 :]
                found = self._in_order(computed, chosen, budget, moved)
                left -= 1
                if found is not None and found.seconds < best.seconds * (1 - TIME_TOLERANCE):
                    best, order, improved = found, moved, True
            apart = 1 if improved else apart + 1
        return best

    def _placed(
        self, computed: ComputeSequence, gaps: Collection[IdleInterval], budget: int
    ) -> ChainOffloadPlan | None:
        """The fastest placing of what leaves; more leaves where that is too little to fit."""
        chosen = add_intervals_to_fit(computed, gaps, budget)
        if chosen is None:
            return None
        return self._in_order(computed, chosen, budget, order_by_production(chosen))

    def _in_order(
        self,
        computed: ComputeSequence,
        chosen: Collection[IdleInterval],
        budget: int,
        order: Sequence[OffloadedStore],
    ) -> ChainOffloadPlan | None:
        """The fastest placing of what leaves in an order; None where it does not fit."""
        best: ChainOffloadPlan | None = None
        seen: set[tuple[tuple[int, int], ...]] = set()
        for turn in (computed.turn, computed.turn - 1):
            for wide in (False, True):
                found = place_offload_intervals(computed, chosen, budget, turn, wide, order)
                key = tuple((stay.out, stay.back) for stay in found or ())
                if found is None or key in seen:
                    continue
                seen.add(key)
                steps = insert_transfers(computed, found, self.ways.loss_position, order)
                best = _faster_plan(best, self._played(steps))
        if best is not None and best.simulation.host_peak > self.link.room:
            return None
        return best

    def _played(self, sequence: list[ChainOperation]) -> ChainOffloadPlan:
        played = simulate_chain_offload(self.ways, self.link, sequence)
        return ChainOffloadPlan(played.peak, played.seconds, played.recomputed, sequence, played)


def _faster_plan(
    one: ChainOffloadPlan | None, other: ChainOffloadPlan | None
) -> ChainOffloadPlan | None:
    """The faster one, or that which needs less where they are as fast."""
    found = [plan for plan in (one, other) if plan is not None]
    return min(found, key=lambda plan: (plan.seconds, plan.peak), default=None)


def add_intervals_to_fit(
    computed: ComputeSequence, gaps: Collection[IdleInterval], budget: int
) -> list[IdleInterval] | None:
    """The gaps with as many more as the budget takes: at each time the lowest-numbered of what is
    stored at the highest step (S 4.3, capper). None where that is not enough."""
    chosen = list(gaps)
    known = set(chosen)
    needs = np.array(computed.needs)
    for gap in chosen:
        needs[gap.first : gap.last + 1] -= gap.size
    if int(needs.max()) <= budget:
        return chosen
    left = [gap for gap in computed.gaps if gap not in known and gap.size > 0]
    left.sort(key=lambda gap: (gap.store[1], not gap.store[0]))
    first, last = (np.array([getattr(gap, at) for gap in left]) for at in ("first", "last"))
    while int(needs.max()) > budget:
        step = int(needs.argmax())
        there = np.flatnonzero((first <= step) & (step <= last))
        if not len(there):
            return None
        gap = left[int(there[0])]
        chosen.append(gap)
        last[there[0]] = -1
        needs[gap.first : gap.last + 1] -= gap.size
    return chosen


def intervals_around_loss(
    computed: ComputeSequence, stores: Collection[StoredItem]
) -> list[IdleInterval]:
    """The gaps around the loss of what is stored."""
    around = [gap for gap in computed.gaps if gap.first <= computed.turn <= gap.last + 1]
    return [gap for gap in around if gap.store in stores]


def min_peak_with_offload(computed: ComputeSequence) -> int:
    """The bytes that a sequence needs where all leaves that can."""
    needs = np.array(computed.needs)
    for gap in computed.gaps:
        needs[gap.first : gap.last + 1] -= gap.size
    return int(needs.max())


def checkpoint_all_sequence(ways: ChainProblem) -> list[ChainOperation]:
    """The sequence in which no position keeps more than its output until its backward is next."""
    last = len(ways)
    steps = [ChainOperation("F_ck", position) for position in range(1, last)]
    steps.append(ChainOperation("loss", last))
    for position in range(last - 1, 0, -1):
        steps += [ChainOperation("F_all", position), ChainOperation("B", position)]
    return steps


def infeasible_message(plans: ChainOffloadPlans, budget: int) -> str:
    """Why no plan fits a budget."""
    needed, operation = plans.needed()
    if plans.link.bandwidth > 0 and needed > budget:
        return f"{operation} alone needs {needed:,} bytes, more than the budget of {budget:,} bytes"
    if plans.link.bandwidth == 0:
        return f"no sequence without transfers fits {budget:,} bytes, and the link has no bandwidth"
    if math.isfinite(plans.link.room):
        return (
            f"what has to leave to fit {budget:,} bytes does not fit the {int(plans.link.room):,} "
            "bytes of the host"
        )
    return f"no sequence with transfers was found that fits {budget:,} bytes"


def load_planner(name: str) -> ChainOffloadPlanner:
    """The planner of that name; raises ConfigError when there is none."""
    if name not in OFFLOADERS:
        known = " or ".join(OFFLOADERS)
        raise ConfigError(f"--strategy {name}: a chain with a link is planned by {known}")
    found = load_strategy_module(OFFLOADERS[name], f"{__package__}.planners")
    return cast(ChainOffloadPlanner, found)
