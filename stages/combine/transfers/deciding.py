"""What every plan with transfers takes at least, and where to start looking for one: the program
with a link (`program`) at the moments that ask for the most."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from tightfit.schemas.link import HostLink
from tightfit.schemas.problem import Problem
from tightfit.stages.combine.moment.deciding import GAIN, MOMENTS, WIDE, WORK, Moments
from tightfit.stages.combine.moment.draft import sequence_of
from tightfit.stages.combine.moment.limits import Limits
from tightfit.stages.combine.moment.matrix import SparseProgram
from tightfit.stages.combine.moment.program import Program, seconds_of_all
from tightfit.stages.combine.moment.solver import integral
from tightfit.stages.combine.transfers.bound import least_seconds_linked
from tightfit.stages.combine.transfers.priced import Maker, Priced, parted, priced
from tightfit.stages.combine.transfers.program import LinkedProgram

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
        self._known: dict[int, _Closest] = {}

    def _program(
        self, moments: Sequence[int], budget: int, heaviest: int | None = None
    ) -> tuple[Program, SparseProgram]:
        program = self._linked(moments, budget, whole=False)
        return program, program.matrix.sparse()

    def _linked(self, moments: Sequence[int], budget: int, whole: bool) -> LinkedProgram:
        return LinkedProgram(
            self.problem, self.order, moments, budget, self.link, self.leaving, whole
        )

    def bound(self, budget: int) -> LinkedBound:
        """What every plan within a budget in bytes takes at least."""
        simple = least_seconds_linked(self.problem, budget, self.link)
        closest = self._closest(budget)
        unit = seconds_of_all(self.problem)
        return LinkedBound(max(simple, closest.bound * unit), closest.clock)

    def drafts(self, budget: int) -> list[list[int]]:
        """None: what a solution says of transfers is in `linked_drafts`."""
        return []

    def linked_drafts(self, budget: int) -> list[Draft]:
        """Starts for the search: of the first moment alone and of all that were looked at."""
        moments = self._closest(budget).moments
        found: list[Draft] = []
        for some in dict.fromkeys((moments[:1], moments)):
            draft = self._draft(sorted(some), budget)
            found += [] if draft is None else [draft]
        return found

    def _closest(self, budget: int) -> _Closest:
        """The bound of the programs of ever more moments, each where what the last one decides
        exceeds the budget the most."""
        if budget not in self._known:
            self._known[budget] = self._look(budget)
        return self._known[budget]

    def _look(self, budget: int) -> _Closest:
        first, known = self._first(budget)
        moments: tuple[int, ...] = (first,)
        bound, clock, work, idle = known.bound, known.clock, WORK, 0
        while math.isfinite(bound):
            _, arrays = self._program(sorted(moments), budget)
            solved = integral(arrays, self.limits)
            idle = idle + 1 if len(moments) > 1 and solved.bound < bound + GAIN else 0
            bound, clock = max(bound, solved.bound), clock or solved.clock
            work -= solved.iterations * len(arrays.cost)
            if idle or work < 0:
                break
            limit = min(MOMENTS, max(len(moments) + 1, WIDE // len(self.problem.nodes)))
            more = self._next(sorted(moments), budget)[: limit - len(moments)]
            if not more:
                break
            moments = (*moments, *more)
        return _Closest(bound, moments, clock)

    def _next(self, moments: Sequence[int], budget: int) -> list[int]:
        """Where a draft exceeds the budget the most, between moments; none where it does not, or
        there is none."""
        found = self._decided(moments, budget)
        return [] if found is None else self._worst(found[1], budget, moments, found[0].problem)

    def _draft(self, moments: Sequence[int], budget: int) -> Draft | None:
        found = self._decided(moments, budget)
        return None if found is None else parted(*found)

    def _decided(self, moments: Sequence[int], budget: int) -> tuple[Priced, list[int]] | None:
        """What the program of some moments decides where storages come back whole: a sequence of
        the problem with prices; None where it has no solution."""
        program = self._linked(moments, budget, whole=True)
        values = integral(program.matrix.sparse(), self.limits).values
        if not len(values):
            return None
        back = {storage for (storage, _), t in program.back.items() if values[t.column] > 0.5}
        makers: dict[int, list[int]] = {}
        for storage in sorted(back):
            makers.setdefault(self.problem.storages[storage].producer, []).append(storage)
        chosen = [Maker(node, storages, 0, 0.0) for node, storages in makers.items()]
        found = priced(self.problem, chosen, 0.0)
        return found, sequence_of(program, values, found.problem)


@dataclass(frozen=True)
class _Closest:
    """A bound in shares of the step, the moments that it was found with in the order in which they
    were looked at, and whether the clock ended a solve."""

    bound: float
    moments: tuple[int, ...]
    clock: bool
