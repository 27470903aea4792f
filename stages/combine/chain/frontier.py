"""The plans of a chain or a join from most to least memory, which any budget is then picked from.

One table of the dynamic program gives sequences for all budgets. The program rounds up what is
stored, so its sequences need less than they were made for. Each is simulated at true sizes and kept
at the peak it really has. Where nothing but rounding would be left of a small budget, a further
table covers the budgets up to a half, a quarter and so on of what keeping everything takes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from tightfit.schemas.frontier import pareto_points
from tightfit.schemas.sequence import ChainOperation
from tightfit.stages.combine.chain.discretize import has_exact_slots
from tightfit.stages.combine.chain.dp_table import (
    TableTimes,
    build_chain_table,
    position_operations,
)
from tightfit.stages.combine.chain.min_memory import ChainMinMemory
from tightfit.stages.combine.chain.options import ChainProblem
from tightfit.stages.combine.chain.simulate import ChainSimulation, simulate_chain
from tightfit.util.strategies import BUDGET_SLOTS

SEQUENCE_CLASSES = {
    "persistent": "persistent sequences of the chain",
    "nested": "nested sequences of the join",
    "sequential": "divisions of the chain into segments of equal length",
    "revolve": "sequences of the chain that store inputs of positions alone",
    "floating": "sequences of the chain in which the last stored output may move on",
    "possible": "all sequences of the chain",
}
"""What sequences are called in sentences, and the class that a plan is optimal in."""
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
    sequence: list[ChainOperation]

    @classmethod
    def of_chain(cls, ways: ChainProblem, sequence: list[ChainOperation]) -> ChainPlan:
        """The plan that a sequence of a chain is, as it is simulated."""
        played = simulate_chain(ways, sequence)
        return cls(played.peak, played.seconds, played.recomputed, sequence)


class BudgetTable(Protocol):
    """The sequences of a dynamic program for all budgets up to a limit."""

    @property
    def times(self) -> TableTimes:
        """The least times."""

    def sequence(self, count: int) -> list[ChainOperation]:
        """An optimal sequence within `count` slots, which must be enough."""


class MinMemory(Protocol):
    """The least memory that a dynamic program can do with."""

    @property
    def budget(self) -> int:
        """The smallest budget in bytes, all counted."""

    def sequence(self) -> list[ChainOperation]:
        """A sequence within the smallest budget."""


class DynamicProgram(Protocol):
    """A dynamic program with its simulator, as a frontier needs it: of a chain or of a join."""

    @property
    def kind(self) -> str:
        """What its sequences are called: a key of `CLASSES`."""

    @property
    def always_resident(self) -> int:
        """The bytes that tables do not count."""

    @property
    def positions(self) -> int:
        """The positions, the loss included."""

    def keep_all(self) -> list[ChainOperation]:
        """The sequence that runs nothing again."""

    def least(self) -> MinMemory:
        """The smallest budget with its sequence."""

    def table(self, limit: int, slots: int, optimistic: bool = False) -> BudgetTable:
        """The table of all budgets up to `limit` bytes, in at most `slots` slots."""

    def has_exact_slots(self, limit: int, slots: int) -> bool:
        """Whether such a table rounds nothing."""

    def simulate(self, sequence: list[ChainOperation]) -> ChainSimulation:
        """Time and peak of a sequence at true sizes."""


@dataclass(frozen=True)
class ChainProgram:
    """The dynamic program of a chain."""

    ways: ChainProblem
    kind: str = "persistent"

    @property
    def always_resident(self) -> int:
        """The bytes that tables do not count."""
        return self.ways.always_resident

    @property
    def positions(self) -> int:
        """The positions, the loss included."""
        return len(self.ways)

    def keep_all(self) -> list[ChainOperation]:
        """The sequence that runs nothing again."""
        return keep_all_sequence(self.ways)

    def least(self) -> MinMemory:
        """The smallest budget with its sequence."""
        return ChainMinMemory(self.ways)

    def table(self, limit: int, slots: int, optimistic: bool = False) -> BudgetTable:
        """The table of all budgets up to `limit` bytes, in at most `slots` slots."""
        return build_chain_table(self.ways, limit, slots, optimistic)

    def has_exact_slots(self, limit: int, slots: int) -> bool:
        """Whether such a table rounds nothing."""
        return has_exact_slots(self.ways, limit, slots)

    def simulate(self, sequence: list[ChainOperation]) -> ChainSimulation:
        """Time and peak of a sequence at true sizes."""
        return simulate_chain(self.ways, sequence)


class ChainPlans(Protocol):
    """The plans of a chain or a join for any budget."""

    slots: int
    """To how many parts of the memory sizes are rounded, 0 where none is."""

    @property
    def kind(self) -> str:
        """What their sequences are called: a key of `CLASSES`."""

    @property
    def solver(self) -> str:
        """How the plans are found."""

    @property
    def keep_all(self) -> ChainPlan:
        """The plan that runs nothing again."""

    @property
    def smallest_budget(self) -> int:
        """The least bytes that any sequence of the kind needs."""

    def within(self, budget: int) -> ChainPlan | None:
        """The fastest plan found of at most `budget` bytes; None where no sequence fits."""

    def bound(self, budget: int) -> float:
        """Seconds that no sequence of the kind within `budget` bytes beats."""

    def rounded(self, budget: int) -> float:
        """The optimum, in seconds, of sizes as the solver rounds them."""


class ProgramFrontier:
    """Plans that do not depend on the budgets that are asked for. Budgets and peaks
    count all that the chain or join counts. One table is in memory at a time."""

    def __init__(self, program: DynamicProgram, slots: int = BUDGET_SLOTS) -> None:
        self.program = program
        self.slots = slots
        self.kind = program.kind
        self.solver = f"dynamic program, {slots} slots"
        self.keep_all = self._plan(program.keep_all())
        self._least = program.least()
        self._table: tuple[int, BudgetTable] | None = None
        self._plans: dict[int, list[ChainPlan]] = {}
        self._steps: dict[int, int] = {}
        self._times: dict[int, TableTimes] = {}
        self._bounds: dict[int, TableTimes] = {}

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
            if level > own and self.bound(budget, self._top(level)) >= best.seconds:
                break
            fitting = [plan for plan in self._asked(level, budget) if plan.peak <= budget]
            best = min([best, *fitting], key=lambda plan: (plan.seconds, plan.peak))
        return best

    def plans(self) -> list[ChainPlan]:
        """Plans that no other beats in both peak and seconds, by falling peak."""
        found = [self.keep_all, self._plan(self._least.sequence())]
        for level in self._levels():
            found += self._level_plans(level)
        return pareto_points(found)

    @property
    def complete(self) -> bool:
        """Whether `plans` has an optimum for every budget, of sizes as the tables round them: they
        look at the largest budget with each time, but in long chains at some of these alone."""
        return all(self._steps[k] <= self._wanted for k in self._levels() if self._level_plans(k))

    @property
    def _wanted(self) -> int:
        """The sequences of a table that are looked at."""
        return max(LEAST_SEQUENCES, MOST_POSITIONS // self.program.positions)

    def rounded(self, budget: int) -> float:
        """The optimum, in seconds, of the chain rounded to slots."""
        if budget >= self.keep_all.peak:
            return self.keep_all.seconds
        level = self._level(budget)
        if level not in self._times:
            self._build(level)
        return self._times[level].seconds(budget - self.program.always_resident)

    def bound(self, budget: int, within: int | None = None) -> float:
        """Seconds that no persistent sequence within `budget` bytes beats; or none of those that
        stay `within` fewer bytes, in the slots made for `budget`."""
        if budget not in self._bounds:
            limit = budget - self.program.always_resident
            self._table = None
            table = self.program.table(limit, self.slots, optimistic=True)
            self._bounds[budget] = table.times
        asked = budget if within is None else within
        return self._bounds[budget].seconds(asked - self.program.always_resident)

    def _build(self, level: int) -> BudgetTable:
        """The table of a level, and its times for later."""
        if self._table is None or self._table[0] != level:
            self._table = None
            table = self.program.table(self._limit(level), self.slots)
            self._table = (level, table)
            self._times[level] = table.times
        return self._table[1]

    def _limit(self, level: int) -> int:
        """The largest budget of a level in bytes, `ways.throughout` not counted."""
        return (self.keep_all.peak - self.program.always_resident) >> level

    def _top(self, level: int) -> int:
        """What no plan of a level exceeds, in bytes: its table has up to half as many slots more
        than its limit asks for."""
        return self._limit(level) + self._limit(level) // 2 + self.program.always_resident

    def _levels(self) -> list[int]:
        """The levels: none below the smallest budget, and none after one that rounds nothing."""
        levels = [0]
        while (
            len(levels) < LEVELS
            and self._limit(len(levels)) + self.program.always_resident > self.smallest_budget
            and not self.program.has_exact_slots(self._limit(levels[-1]), self.slots)
        ):
            levels.append(len(levels))
        return levels

    def _level(self, budget: int) -> int:
        """The level whose table covers a budget."""
        covering = [
            k for k in self._levels() if budget - self.program.always_resident <= self._limit(k)
        ]
        return max(covering, default=0)

    def _level_plans(self, level: int) -> list[ChainPlan]:
        """The plans of one level: those between its limit and the next one's."""
        if level not in self._plans:
            last = level == self._levels()[-1]
            lowest = -1 if last else self._limit(level + 1)
            table = self._build(level)
            unit = table.times.slots.unit
            steps = [m for m in table.times.steps() if m * unit > lowest]
            self._steps[level] = len(steps)
            chosen = [steps[index] for index in spread_indices(len(steps), self._wanted)]
            plans = [self._plan(table.sequence(m)) for m in chosen]
            self._plans[level] = [
                p for p in plans if p.peak - self.program.always_resident > lowest
            ]
        return self._plans[level]

    def _asked(self, level: int, budget: int) -> list[ChainPlan]:
        """The plans of a level; where nothing was rounded, the optimum of the budget as well."""
        found = self._level_plans(level)
        if not self._times[level].slots.exact:
            return found
        table = self._build(level)
        room = table.times.slots.room(budget - self.program.always_resident)
        if np.isfinite(table.times.lost[room]):
            return [*found, self._plan(table.sequence(room))]
        return found

    def _plan(self, sequence: list[ChainOperation]) -> ChainPlan:
        played = self.program.simulate(sequence)
        return ChainPlan(played.peak, played.seconds, played.recomputed, sequence)


class ChainFrontier(ProgramFrontier):
    """The plans of a chain."""

    def __init__(self, ways: ChainProblem, slots: int = BUDGET_SLOTS) -> None:
        super().__init__(ChainProgram(ways), slots)


def keep_all_sequence(ways: ChainProblem) -> list[ChainOperation]:
    """Every position once, each in its fastest way, the least memory where several are fastest."""
    last = len(ways)
    forward: list[ChainOperation] = []
    backward: list[ChainOperation] = []
    for position in range(1, last + 1):
        way = min(ways.at(position).ways, key=lambda way: (way.seconds, way.save))
        actions = position_operations(position, way.option, last, [])
        forward += [action for action in actions[:1] if isinstance(action, ChainOperation)]
        backward += [action for action in actions[1:] if isinstance(action, ChainOperation)]
    return [*forward, *reversed(backward)]


def spread_indices(available: int, wanted: int) -> list[int]:
    """At most `wanted` indices below `available`, evenly spread, first and last included."""
    if available <= wanted:
        return list(range(available))
    return [round(index * (available - 1) / (wanted - 1)) for index in range(wanted)]
