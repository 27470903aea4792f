"""What every plan with transfers takes at least, and where to start looking for one: the program
with a link (`program`) at the moment that asks for the most."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from schemas.link import HostLink
from schemas.problem import Problem
from stages.combine.moment.deciding import Moments
from stages.combine.moment.draft import sequence_of
from stages.combine.moment.matrix import SparseProgram
from stages.combine.moment.program import Program
from stages.combine.moment.solver import Limits, integral
from stages.combine.transfers.bound import least_seconds_linked
from stages.combine.transfers.priced import Maker, parted, priced
from stages.combine.transfers.program import LinkedProgram

Draft = tuple[list[int], list[tuple[int, int]]]
"""A sequence of node positions, and storages with the places in it ahead of which they come back;
it may exceed the budget."""


@dataclass(frozen=True)
class LinkedBound:
    """`seconds` is at most what any plan with transfers takes, views left out: inf where there is
    none. `clock` says that the clock, not the work, ended a solve."""

    seconds: float
    clock: bool


class LinkedMoments(Moments):
    """The programs of one problem with a link over which some storages may leave."""

    def __init__(
        self,
        problem: Problem,
        link: HostLink,
        leaving: Collection[int],
        limits: Limits | None = None,
    ) -> None:
        super().__init__(problem, limits)
        self.link = link
        self.leaving = leaving
        self._moment: dict[int, int] = {}

    def _program(self, moments: Sequence[int], budget: int) -> tuple[Program, SparseProgram]:
        program = self._linked(moments[0], budget, whole=False)
        return program, program.matrix.sparse()

    def _linked(self, moment: int, budget: int, whole: bool) -> LinkedProgram:
        return LinkedProgram(
            self.problem, self.order, moment, budget, self.link, self.leaving, whole
        )

    def bound(self, budget: int) -> LinkedBound:
        """What every plan within a budget in bytes takes at least."""
        simple = least_seconds_linked(self.problem, budget, self.link)
        moment, known = self._first(budget)
        self._moment[budget] = moment
        if known.bound == math.inf:
            return LinkedBound(math.inf, known.clock)
        program, arrays = self._program([moment], budget)
        solved = integral(arrays, self.limits)
        least = max(known.bound, solved.bound) * program.unit
        return LinkedBound(max(simple, least), known.clock or solved.clock)

    def draft(self, budget: int) -> Draft | None:
        """A start for the search, None where the program has no solution."""
        moment = self._moment.get(budget)
        if moment is None:
            moment = self._first(budget)[0]
        program = self._linked(moment, budget, whole=True)
        values = integral(program.matrix.sparse(), self.limits).values
        if not len(values):
            return None
        away = [s for s, term in program.away.items() if values[term.column] > 0.5]
        makers: dict[int, list[int]] = {}
        for storage in away:
            makers.setdefault(self.problem.storages[storage].producer, []).append(storage)
        chosen = [Maker(node, storages, 0, 0.0) for node, storages in makers.items()]
        found = priced(self.problem, chosen, 0.0)
        return parted(found, sequence_of(program, values, found.problem))
