"""The plans of a chain from most to least memory, which any budget is then picked from.

One table of the dynamic program gives sequences for all budgets. It rounds what is stored up, so
its sequences need less than they were made for: they are replayed at true sizes and kept at the
peak they really have. Where nothing but rounding would be left of a small budget, a further table
covers the budgets up to a half, a quarter and so on of what keeping everything takes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from schemas.sequence import Action
from stages.combine.chain_replay import chain_replay
from stages.combine.least import Least
from stages.combine.links import Links
from stages.combine.slots import rounds_nothing
from stages.combine.table import Table, build_table, run_block

SLOTS = 500
WALKS = 5000
"""Positions that the sequences of one table may have together."""
FEWEST = 48
"""Sequences of a table that are looked at however long the chain is."""
LEVELS = 6
"""Tables at most, each for half the budgets of the one before."""


@dataclass(frozen=True)
class ChainPlan:
    """A sequence with its `peak` in bytes, all counted, its `seconds`, and how many forwards it
    runs `again`."""

    peak: int
    seconds: float
    again: int
    sequence: list[Action]


class ChainFrontier:
    """Plans of a chain that do not depend on the budgets that are asked for."""

    def __init__(self, links: Links, slots: int = SLOTS) -> None:
        self.links = links
        self.slots = slots
        self.keep_all = self._plan(keep_all_sequence(links))
        self._least = Least(links)
        self._tables: dict[int, Table] = {}
        self._plans: dict[int, list[ChainPlan]] = {}

    @property
    def smallest_budget(self) -> int:
        """The least bytes that any persistent sequence needs, all counted."""
        return self._least.budget

    def within(self, budget: int) -> ChainPlan | None:
        """The fastest plan of at most `budget` bytes, all counted; None where no sequence fits."""
        if budget >= self.keep_all.peak:
            return self.keep_all
        if budget < self.smallest_budget:
            return None
        best = self._plan(self._least.sequence())
        bound: Table | None = None
        for level in self._levels():
            if level and self._limit(level) + self.links.held <= budget:
                bound = bound or self.optimistic(budget)
                if bound.seconds(self._limit(level)) >= best.seconds:
                    break
            if self._limit(level + 1) + self.links.held <= budget or level == self._levels()[-1]:
                fitting = [plan for plan in self._asked(level, budget) if plan.peak <= budget]
                best = min([best, *fitting], key=lambda plan: (plan.seconds, plan.peak))
        return best

    def plans(self) -> list[ChainPlan]:
        """Plans that no other beats in both peak and seconds, by falling peak."""
        found = [self.keep_all, self._plan(self._least.sequence())]
        for level in self._levels():
            found += self._level_plans(level)
        return pareto(found)

    def optimistic(self, budget: int) -> Table:
        """The table that bounds the time of any persistent sequence within `budget` bytes."""
        return build_table(self.links, budget - self.links.held, self.slots, optimistic=True)

    def table(self, level: int) -> Table:
        """The table of one level."""
        if level not in self._tables:
            self._tables[level] = build_table(self.links, self._limit(level), self.slots)
        return self._tables[level]

    def level(self, budget: int) -> int:
        """The level whose table covers a budget, all counted."""
        covering = [k for k in self._levels() if budget - self.links.held <= self._limit(k)]
        return max(covering, default=0)

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

    def _level_plans(self, level: int) -> list[ChainPlan]:
        """The plans of one level: those between its limit and the next one's."""
        if level not in self._plans:
            last = level == self._levels()[-1]
            lowest = -1 if last else self._limit(level + 1)
            table = self.table(level)
            steps = table.steps()
            if not last:
                steps = [m for m in steps if m * table.slots.unit > lowest]
            wanted = max(FEWEST, WALKS // len(self.links))
            chosen = [steps[index] for index in spread(len(steps), wanted)]
            plans = [self._plan(table.sequence(m)) for m in chosen]
            self._plans[level] = [p for p in plans if p.peak - self.links.held > lowest]
        return self._plans[level]

    def _asked(self, level: int, budget: int) -> list[ChainPlan]:
        """The plans of a level; where nothing was rounded, the optimum of the budget as well."""
        table = self.table(level)
        found = self._level_plans(level)
        room = table.slots.room(budget - self.links.held)
        if table.slots.exact and np.isfinite(table.lost[room]):
            return [*found, self._plan(table.sequence(room))]
        return found

    def _plan(self, sequence: list[Action]) -> ChainPlan:
        played = chain_replay(self.links, sequence)
        return ChainPlan(played.peak, played.seconds, played.again, sequence)


def keep_all_sequence(links: Links) -> list[Action]:
    """Every position once, each in its fastest way, the least memory where several are fastest."""
    last = len(links)
    forward: list[Action] = []
    backward: list[Action] = []
    for position in range(1, last + 1):
        way = min(links.at(position).ways, key=lambda way: (way.seconds, way.save))
        actions = run_block(position, way.option, last, [])
        forward += [action for action in actions[:1] if isinstance(action, Action)]
        backward += [action for action in actions[1:] if isinstance(action, Action)]
    return [*forward, *reversed(backward)]


def pareto(plans: list[ChainPlan]) -> list[ChainPlan]:
    """The plans that no other beats in both peak and seconds, by falling peak."""
    chosen: list[ChainPlan] = []
    for plan in sorted(plans, key=lambda plan: (plan.peak, plan.seconds)):
        if not chosen or plan.seconds < chosen[-1].seconds:
            chosen.append(plan)
    return chosen[::-1]


def spread(available: int, wanted: int) -> list[int]:
    """At most `wanted` indices below `available`, evenly spread, first and last included."""
    if available <= wanted:
        return list(range(available))
    return [round(index * (available - 1) / (wanted - 1)) for index in range(wanted)]
