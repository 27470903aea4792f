"""The plans of a chain from most to least memory, which any budget is then picked from.

One table of the dynamic program gives sequences for all budgets. The program rounds up what is
stored, so its sequences need less than they were made for. Each is replayed at true sizes and kept
at the peak it really has. Where nothing but rounding would be left of a small budget, a further
table covers the budgets up to a half, a quarter and so on of what keeping everything takes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from schemas.frontier import pareto
from schemas.sequence import Operation
from stages.combine.chain.least import Least
from stages.combine.chain.links import Links
from stages.combine.chain.replay import chain_replay
from stages.combine.chain.slots import rounds_nothing
from stages.combine.chain.table import Table, Times, build_table, run_block

SLOTS = 500
MOST_POSITIONS = 5000
"""Positions that the sequences of one table may have together."""
LEAST_SEQUENCES = 48
"""Sequences of a table that are looked at however long the chain is."""
LEVELS = 6
"""Tables at most, each for half the budgets of the one before."""


@dataclass(frozen=True)
class ChainPlan:
    """A sequence with its `peak` in bytes, all counted, its `seconds`, and how many forwards it
    runs again (`recomputed`)."""

    peak: int
    seconds: float
    recomputed: int
    sequence: list[Operation]


class ChainFrontier:
    """Plans of a chain that do not depend on the budgets that are asked for. Budgets and peaks
    count all that the chain counts. One table is in memory at a time."""

    def __init__(self, links: Links, slots: int = SLOTS) -> None:
        self.links = links
        self.slots = slots
        self.keep_all = self._plan(keep_all_sequence(links))
        self._least = Least(links)
        self._table: tuple[int, Table] | None = None
        self._plans: dict[int, list[ChainPlan]] = {}
        self._times: dict[int, Times] = {}
        self._bounds: dict[int, Times] = {}

    @property
    def smallest_budget(self) -> int:
        """The least bytes that any persistent sequence needs."""
        return self._least.budget

    def within(self, budget: int) -> ChainPlan | None:
        """The fastest plan of at most `budget` bytes; None where no sequence fits."""
        if budget >= self.keep_all.peak:
            return self.keep_all
        if budget < self.smallest_budget:
            return None
        best = self._plan(self._least.sequence())
        own = self._level(budget)
        for level in self._levels()[own:]:
            top = self._limit(level) + self.links.held
            if level > own and self.bound(budget, top) >= best.seconds:
                break
            fitting = [plan for plan in self._asked(level, budget) if plan.peak <= budget]
            best = min([best, *fitting], key=lambda plan: (plan.seconds, plan.peak))
        return best

    def plans(self) -> list[ChainPlan]:
        """Plans that no other beats in both peak and seconds, by falling peak."""
        found = [self.keep_all, self._plan(self._least.sequence())]
        for level in self._levels():
            found += self._level_plans(level)
        return pareto(found)

    def rounded(self, budget: int) -> float:
        """The optimum, in seconds, of the chain rounded to slots."""
        if budget >= self.keep_all.peak:
            return self.keep_all.seconds
        level = self._level(budget)
        if level not in self._times:
            self._build(level)
        return self._times[level].seconds(budget - self.links.held)

    def bound(self, budget: int, within: int | None = None) -> float:
        """Seconds that no persistent sequence within `budget` bytes beats; or none of those that
        stay `within` fewer bytes, in the slots made for `budget`."""
        if budget not in self._bounds:
            limit = budget - self.links.held
            self._table = None
            table = build_table(self.links, limit, self.slots, optimistic=True)
            self._bounds[budget] = table.times
        asked = budget if within is None else within
        return self._bounds[budget].seconds(asked - self.links.held)

    def _build(self, level: int) -> Table:
        """The table of a level, and its times for later."""
        if self._table is None or self._table[0] != level:
            self._table = None
            table = build_table(self.links, self._limit(level), self.slots)
            self._table = (level, table)
            self._times[level] = table.times
        return self._table[1]

    def _limit(self, level: int) -> int:
        """The largest budget of a level in bytes, `links.held` not counted."""
        return (self.keep_all.peak - self.links.held) >> level

    def _levels(self) -> list[int]:
        """The levels: none below the smallest budget, and none after one that rounds nothing."""
        levels = [0]
        while (
            len(levels) < LEVELS
            and self._limit(len(levels)) + self.links.held > self.smallest_budget
            and not rounds_nothing(self.links, self._limit(levels[-1]), self.slots)
        ):
            levels.append(len(levels))
        return levels

    def _level(self, budget: int) -> int:
        """The level whose table covers a budget."""
        covering = [k for k in self._levels() if budget - self.links.held <= self._limit(k)]
        return max(covering, default=0)

    def _level_plans(self, level: int) -> list[ChainPlan]:
        """The plans of one level: those between its limit and the next one's."""
        if level not in self._plans:
            last = level == self._levels()[-1]
            lowest = -1 if last else self._limit(level + 1)
            table = self._build(level)
            steps = [m for m in table.times.steps() if m * table.slots.unit > lowest]
            wanted = max(LEAST_SEQUENCES, MOST_POSITIONS // len(self.links))
            chosen = [steps[index] for index in spread(len(steps), wanted)]
            plans = [self._plan(table.sequence(m)) for m in chosen]
            self._plans[level] = [p for p in plans if p.peak - self.links.held > lowest]
        return self._plans[level]

    def _asked(self, level: int, budget: int) -> list[ChainPlan]:
        """The plans of a level; where nothing was rounded, the optimum of the budget as well."""
        found = self._level_plans(level)
        if not self._times[level].slots.exact:
            return found
        table = self._build(level)
        room = table.slots.room(budget - self.links.held)
        if np.isfinite(table.times.lost[room]):
            return [*found, self._plan(table.sequence(room))]
        return found

    def _plan(self, sequence: list[Operation]) -> ChainPlan:
        played = chain_replay(self.links, sequence)
        return ChainPlan(played.peak, played.seconds, played.recomputed, sequence)


def keep_all_sequence(links: Links) -> list[Operation]:
    """Every position once, each in its fastest way, the least memory where several are fastest."""
    last = len(links)
    forward: list[Operation] = []
    backward: list[Operation] = []
    for position in range(1, last + 1):
        way = min(links.at(position).ways, key=lambda way: (way.seconds, way.save))
        actions = run_block(position, way.option, last, [])
        forward += [action for action in actions[:1] if isinstance(action, Operation)]
        backward += [action for action in actions[1:] if isinstance(action, Operation)]
    return [*forward, *reversed(backward)]


def spread(available: int, wanted: int) -> list[int]:
    """At most `wanted` indices below `available`, evenly spread, first and last included."""
    if available <= wanted:
        return list(range(available))
    return [round(index * (available - 1) / (wanted - 1)) for index in range(wanted)]
