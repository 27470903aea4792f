"""What a plan with transfers keeps across a few moments, what it has sent before them and what it
makes again or brings back between them: the integer program of `stages.combine.moment.program` with
a third choice, and with clocks.

The least value of the program is at most the seconds of every plan within the budget, whatever its
order. Read off a plan, beside what that program reads: `back` says of a storage and an interval
whether it was gone when the interval began, sent whole before, and comes back in it; `gone` of a
storage and a moment whether it had been sent whole before the moment and is `back` in an interval
from there on; a clock how long an interval takes, from the start of its
moment's node to that of the next. Every plan keeps to the rows:

- What a run reads was there when its interval began, is made in it, or comes back in it.
- An interval takes at least as long as its runs, one after the other, with the overhead of what
  comes back in it, and up to the first moment of what is gone there.
- What comes back begins to do so in its interval, since it takes its bytes of the device from where
  that begins. So from any moment on a plan takes at least as long as all that comes back from there
  on, one transfer after the other.
- What is `back` in an interval is `gone` at the moment where that begins. What is so at a moment is
  so at the one before, or was there at that one, or was made in between. So up to any moment a plan
  takes at least as long as the transfers of all that is gone there, which is in the other memory
  together, within the room there.
- What is overwritten in an interval, or is there after it, was there, made or back. It may be so
  several times, since it may leave and come back within an interval, and need not be made again.
- What a node or those behind it make cannot be sent before all that node depends on has run.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Sequence

from tightfit.schemas.link import HostLink
from tightfit.schemas.problem import Problem
from tightfit.stages.combine.moment.intervals import Order
from tightfit.stages.combine.moment.matrix import NOTHING, ONE, Term
from tightfit.stages.combine.moment.program import Program

POINTS = 24
"""At how many nodes of the forward the link is looked at."""
LONGEST = 16.0
"""A transfer counts as no more than so many steps, which keeps the figures near each other."""


class LinkedProgram(Program):
    """The program of a problem at the first runs of some nodes from the loss on, each of which
    depends on the one before, for a budget in bytes and storages that may leave. The value of
    `matrix` is in shares of `unit` seconds. With `whole`, storages come back whole, else parts of
    them may."""

    def __init__(
        self,
        problem: Problem,
        order: Order,
        moments: Sequence[int],
        budget: int,
        link: HostLink,
        leaving: Collection[int],
        whole: bool = False,
    ) -> None:
        self.link = link
        self.leaving = leaving
        self.whole = whole
        self.back: dict[tuple[int, int], Term] = {}
        self.gone: dict[tuple[int, int], Term] = {}
        super().__init__(problem, order.intervals(moments), budget)
        for storage in {storage: None for storage, _ in self.back}:
            self._add_gone(storage)
        self._add_clocks(order)
        for number in range(1, self.last + 1) if math.isfinite(link.room) else ():
            away = [
                (-float(problem.storages[storage].bytes), term)
                for (storage, when), term in self.gone.items()
                if when == number
            ]
            self.matrix.at_least(-link.room, away, unit=max(link.room, 1.0))

    def _add_kept(self, storage: int) -> None:
        maker = self.problem.storages[storage].producer
        for interval in range(1, self.last + 1) if storage in self.leaving else ():
            before = self._first_up_to(maker, interval - 1)
            if before:
                term = self.matrix.binary() if self.whole else self.matrix.share()
                self.matrix.implied(term, before)
                self.back[storage, interval] = term
                self.gone[storage, interval] = self.matrix.share()
        super()._add_kept(storage)

    def _makes(self, storage: int, interval: int, runs: dict[tuple[int, int], Term]) -> list[Term]:
        found = super()._makes(storage, interval, runs)
        back = self.back.get((storage, interval))
        return found if back is None else [*found, back]

    def _lives(self, after: Term, storage: int, interval: int) -> None:
        if storage not in self.leaving:
            super()._lives(after, storage, interval)
            return
        begun = [self.kept.get((storage, interval), NOTHING)]
        begun += self._makes(storage, interval, self.further)
        for claim in (after, *self.overwritten.get((storage, interval), ())):
            if claim is not NOTHING and ONE not in begun:
                self.matrix.implied(claim, begun)

    def _returns(self, storage: int) -> bool:
        """Its copy may come back, also within the interval in which it was sent."""
        return storage in self.leaving

    def _brought(self, storage: int, number: int) -> list[Term]:
        """That it was gone at the moment: else it is made before it can be sent and come back."""
        return [self.gone[storage, number]] if (storage, number) in self.gone else []

    def _add_gone(self, storage: int) -> None:
        """Whether a storage is gone at each moment."""
        later = NOTHING
        for number in range(self.last, 0, -1):
            back = self.back.get((storage, number))
            if back is None:
                return
            made = super()._makes(storage, number, self.further)
            there = [(1.0, term) for term in (self.kept.get((storage, number), NOTHING), *made)]
            term = self.gone[storage, number]
            self.matrix.implied(back, [term])
            self.matrix.at_least(0.0, [(1.0, term), *there, (-1.0, later)])
            later = term

    def _add_clocks(self, order: Order) -> None:
        """The time of all intervals, which is the value in place of the seconds of all runs."""
        matrix, parts = self.matrix, self._runs_by_interval()
        if self.link.overhead or self.link.overhead_per_byte:
            self._add_overheads(parts)
        matrix.cost = [0.0] * len(matrix.cost)
        most = sum(abs(share) for runs in parts for share, _ in runs)
        most += sum(self._share(storage) for storage, _ in (*self.back, *self.gone))
        clocks = [matrix.share(1.0, most) for _ in parts]
        for clock, runs in zip(clocks, parts, strict=True):
            matrix.at_least(0.0, [(1.0, clock), *((-share, term) for share, term in runs)])
        for number in range(1, self.last + 1):
            since = [moved for moved in self.back.items() if moved[0][1] >= number]
            self._takes(clocks[number:], since)
            self._takes(clocks[:number], [m for m in self.gone.items() if m[0][1] == number])
        for ready, behind in self._points(order):
            late = [
                (-self._share(storage), term)
                for (storage, number), term in self.gone.items()
                if number == 1 and behind >> self.problem.storages[storage].producer & 1
            ]
            matrix.at_least(ready, [(1.0, clocks[0]), *late])

    def _takes(self, clocks: Iterable[Term], moved: Iterable[tuple[tuple[int, int], Term]]) -> None:
        """Adds the row that clocks together take at least as long as transfers."""
        sizes = [(-self._share(storage), term) for (storage, _), term in moved]
        self.matrix.at_least(0.0, [*((1.0, clock) for clock in clocks), *sizes])

    def _runs_by_interval(self) -> list[list[tuple[float, Term]]]:
        """What runs take in each interval, in shares of `unit`."""
        parts: list[list[tuple[float, Term]]] = [[] for _ in range(self.last + 1)]
        cost = self.matrix.cost
        for (position, interval), term in self.first.items():
            parts[interval].append((self.problem.nodes[position].seconds / self.unit, term))
        for (_, interval), found in self.over.items():
            parts[interval].extend((cost[term.column], term) for _, term in found)
        for (_, interval), term in self.runs.items():
            parts[interval].append((cost[term.column], term))
        return parts

    def _share(self, storage: int) -> float:
        seconds = self.link.seconds(self.problem.storages[storage].bytes)
        return min(seconds / self.unit, LONGEST)

    def _add_overheads(self, parts: Sequence[list[tuple[float, Term]]]) -> None:
        """Adds what transfers take of the computations in each interval, in shares of `unit`."""

        def share(storage: int) -> float:
            seconds = self.link.overhead_of(self.problem.storages[storage].bytes)
            return min(seconds / self.unit, LONGEST)

        for (storage, number), term in self.back.items():
            parts[number].append((share(storage), term))
        for (storage, number), term in self.gone.items():
            if number == 1:
                parts[0].append((share(storage), term))

    def _points(self, order: Order) -> Iterator[tuple[float, int]]:
        """Some nodes of the forward that run ahead of the moment: when each has run at least, and a
        bit for it and for each of those that depend on it."""
        nodes = self.problem.nodes
        moment = self.intervals.moments[0]
        chain = [node for node in order.forward if order.precedes(node, moment)]
        for point in chain[:: max(len(chain) // POINTS, 1)]:
            ready = nodes[point].least_seconds
            behind = 1 << point
            for node in range(len(nodes)):
                if order.precedes(node, point):
                    ready += nodes[node].least_seconds
                elif order.precedes(point, node):
                    behind |= 1 << node
            yield ready / self.unit, behind
