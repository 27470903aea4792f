"""Decides together what is kept, run again, or sent to another memory and brought back.

For a price a byte the search of `stages.combine.polish` decides it on the problem with prices
(`priced`), as if transfers took no time; then the clocks of the lanes say what the plan takes
(`placing`). The price for which they say the least is looked for: first from nothing to what the
dearest ops take to run again, then ever closer around the best.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate

from schemas.link import HostLink
from schemas.problem import Problem
from stages.combine.polish.polisher import Polisher, grid
from stages.combine.transfers.placing import Placed, Placer
from stages.combine.transfers.priced import parted, priced, rates

SHARES = (0.0, 0.4, 0.7, 0.85, 0.93, 0.97)
"""The first prices: for each, this part of the bytes that may leave takes less to run again."""
CLOSER = 4
"""How often a price between the best and a neighbour is tried."""
EVERY = 3
"""One budget of a frontier's grid in this many is planned with transfers."""
BELOW = 1.0 - 1e-9
"""A price is this much below what it stands for, so that nothing is sent that is as fast to run."""


class Linker:
    """Plans of one problem over one link; `leaving` are the storages that may leave, with the values
    by which they do."""

    def __init__(self, problem: Problem, link: HostLink, leaving: Mapping[int, int]) -> None:
        self.problem = problem
        self.placer = Placer(problem, link, leaving)
        self.leaving = leaving
        self.rates = rates(problem, leaving)
        self.bytes = list(accumulate(size for _, size in self.rates))
        self.idle = link.bandwidth == 0 or not leaving

    def plan(self, budget: int, starts: Sequence[Sequence[int]]) -> Placed | None:
        """The fastest plan with transfers found within a budget in bytes, from sequences of node
        positions, of which the first is the best without transfers; None where none was found."""
        if self.idle:
            return None
        search = _Prices(self, budget, starts)
        for share in SHARES:
            search.at(share)
        for _ in range(CLOSER):
            search.closer()
        return search.best

    def price(self, share: float) -> float:
        """The price, in seconds a byte, below which ops of a share of all bytes run again."""
        if share <= 0 or not self.rates:
            return 0.0
        wanted = share * self.bytes[-1]
        place = next(i for i, size in enumerate(self.bytes) if size >= wanted * BELOW)
        return self.rates[place][0] * BELOW

    def sweep(
        self,
        highest: int,
        least: int,
        starts: Callable[[int], Sequence[Sequence[int]]],
        workers: int,
    ) -> Iterator[Placed]:
        """Plans for a grid of budgets from below the `highest` peak down to the `least`; `starts`
        gives the sequences to start from for a budget. None of this depends on `workers`."""
        if self.idle:
            return
        budgets = grid(highest, least)[1::EVERY]
        with ThreadPoolExecutor(workers) as pool:
            found = pool.map(lambda budget: self.plan(budget, starts(budget)), budgets)
            yield from (placed for placed in found if placed is not None)


class _Prices:
    """The search for the best price for one budget; `tried` are shares with what came of them."""

    def __init__(self, linker: Linker, budget: int, starts: Sequence[Sequence[int]]) -> None:
        self.linker = linker
        self.budget = budget
        self.starts = list(starts)
        self.best: Placed | None = None
        self.share = 0.0
        self.tried: dict[float, float] = {}
        for start in [*starts, range(len(linker.problem.nodes))]:
            self._keep(linker.placer.place(start, None, budget))

    def at(self, share: float) -> None:
        """Tries the price of a share."""
        linker = self.linker
        found = priced(linker.problem, linker.leaving, linker.price(share))
        starts = dict(enumerate(self.starts[:1]))
        polished = Polisher(found.problem).polish(starts, self.budget)
        sequence, back = parted(found, polished.sequence)
        placed = linker.placer.place(sequence, back, self.budget)
        self.tried[share] = float("inf") if placed is None else placed.seconds
        if self._keep(placed):
            self.share = share

    def closer(self) -> None:
        """Tries a share between the best one and that neighbour of it which is the better one."""
        known = sorted([*self.tried, 1.0])
        place = known.index(self.share)
        beside = [known[i] for i in (place - 1, place + 1) if 0 <= i < len(known)]
        other = min(beside, key=lambda share: self.tried.get(share, float("inf")))
        self.at((self.share + other) / 2)

    def _keep(self, placed: Placed | None) -> bool:
        better = placed is not None and (self.best is None or placed.seconds < self.best.seconds)
        if better:
            self.best = placed
        return better
