"""What a plan with transfers keeps at a moment, has sent before it or makes again after it: the
integer program of `stages.combine.moment.program` with a third choice, and with clocks.

The least value of the program is at most the seconds of every plan within the budget, whatever its
order. Read off a plan, beside what that program reads: `away` says of a storage whether it was
gone at the moment, in the other memory, and came back afterwards; `before` and `after` are how long
the plan takes up to the start of the moment's node and from it on. Every plan keeps to the rows:

- What a run from the moment on reads was there, is made again, or was away: it came back.
- Runs of a side of the moment take it at least as long as they last, one after the other.
- What was gone had been sent whole before the moment, since it is freed once that has ended; what
  comes back does so after it, since it takes its bytes of the device from where that begins. So
  each side takes at least as long as what the link moves there, one transfer after the other.
- What was gone was in the other memory together, and within the room there.
- What a node or those behind it make cannot be sent before all that node depends on has run.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator

from schemas.link import HostLink
from schemas.problem import Problem
from stages.combine.moment.intervals import Order
from stages.combine.moment.matrix import Term
from stages.combine.moment.program import Program

POINTS = 24
"""At how many nodes of the forward the link is looked at."""
LONGEST = 16.0
"""A transfer counts as no more than so many steps, which keeps the figures near each other."""


class LinkedProgram(Program):
    """The program of a problem at the first run of one node from the loss on, for a budget in bytes
    and storages that may leave. The value of `matrix` is in shares of `unit` seconds. With `whole`,
    storages leave whole, else parts of them may."""

    def __init__(
        self,
        problem: Problem,
        order: Order,
        moment: int,
        budget: int,
        link: HostLink,
        leaving: Collection[int],
        whole: bool = False,
    ) -> None:
        self.link = link
        self.leaving = leaving
        self.whole = whole
        self.away: dict[int, Term] = {}
        super().__init__(problem, order.intervals([moment]), budget)
        self._add_clocks(order)
        if math.isfinite(link.room):
            gone = [(-float(problem.storages[each].bytes), t) for each, t in self.away.items()]
            self.matrix.at_least(-link.room, gone, unit=max(link.room, 1.0))

    def _add_kept(self, storage: int) -> None:
        before = self._first_up_to(self.problem.storages[storage].producer, 0)
        if storage in self.leaving and before:
            term = self.matrix.binary() if self.whole else self.matrix.share()
            self.matrix.implied(term, before)
            self.away[storage] = term
        super()._add_kept(storage)

    def _makes(self, storage: int, interval: int, runs: dict[tuple[int, int], Term]) -> list[Term]:
        found = super()._makes(storage, interval, runs)
        return [*found, self.away[storage]] if interval and storage in self.away else found

    def _add_clocks(self, order: Order) -> None:
        """The time of both sides, which is the value in place of the seconds of all runs."""
        matrix, sides = self.matrix, self._runs_by_side()
        matrix.cost = [0.0] * len(matrix.cost)
        moves = {storage: self._share(storage) for storage in self.away}
        most = sum(abs(share) for runs in sides for share, _ in runs) + sum(moves.values())
        clocks = [matrix.share(1.0, most) for _ in sides]
        moved = [(-moves[storage], term) for storage, term in self.away.items()]
        for clock, runs in zip(clocks, sides, strict=True):
            matrix.at_least(0.0, [(1.0, clock), *((-share, term) for share, term in runs)])
            matrix.at_least(0.0, [(1.0, clock), *moved])
        for ready, behind in self._points(order):
            late = [
                (-moves[storage], term)
                for storage, term in self.away.items()
                if behind >> self.problem.storages[storage].producer & 1
            ]
            matrix.at_least(ready, [(1.0, clocks[0]), *late])

    def _runs_by_side(self) -> tuple[list[tuple[float, Term]], list[tuple[float, Term]]]:
        """What runs take up to the moment and from it on, in shares of `unit`."""
        sides: tuple[list[tuple[float, Term]], list[tuple[float, Term]]] = ([], [])
        cost = self.matrix.cost
        for (position, interval), term in self.first.items():
            sides[interval].append((self.problem.nodes[position].seconds / self.unit, term))
        for (_, interval), found in self.over.items():
            sides[interval].extend((cost[term.column], term) for _, term in found)
        for (_, interval), term in self.runs.items():
            sides[interval].append((cost[term.column], term))
        return sides

    def _share(self, storage: int) -> float:
        seconds = self.link.seconds(self.problem.storages[storage].bytes)
        return min(seconds / self.unit, LONGEST)

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
