"""Decides together what is kept, run again, or sent to another memory and brought back.

Where some makers may bring back what they made, for a price a byte, the search of
`stages.combine.polish` decides it on the problem with prices (`priced`), as if transfers took no
time. Then transfers are placed and the clocks of the lanes say what the plan takes (`placing`). How
many may is looked for by halving: fewer where computations wait for the link, else more. Those may
first that take the longest a byte to run again, and their rate is the price.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import accumulate

from schemas.link import HostLink
from schemas.problem import Problem
from stages.combine.polish.polisher import Polisher, grid
from stages.combine.transfers.placing import Placed, Placer
from stages.combine.transfers.priced import Maker, makers, parted, priced

EVERY = 4
"""One budget of a frontier's grid in this many is planned with transfers."""
IDLE = 0.002
"""A plan whose computations wait for less than this part of it has room for more transfers."""
BELOW = 1.0 - 1e-9
"""A price is this much below what it stands for, so that nothing is sent that is as fast to run."""


@dataclass(frozen=True)
class Effort:
    """How hard is looked for a plan: how often what may leave is halved, for makers of the first
    `parts` of the forward's time alone, since what is made late has little time to leave."""

    parts: tuple[float, ...]
    halvings: int


SWEEP = Effort((0.7,), 6)
"""For one of many budgets."""
ASKED = Effort((1.0, 0.8, 0.6, 0.4), 7)
"""For a budget that is asked for."""


class Linker:
    """Plans of one problem over one link; `leaving` are the storages that may leave, with the
    values by which they do."""

    def __init__(self, problem: Problem, link: HostLink, leaving: Mapping[int, int]) -> None:
        self.problem = problem
        self.placer = Placer(problem, link, leaving)
        self.idle = link.bandwidth == 0 or not leaving
        self.makers = makers(problem, leaving)
        self.ends = list(accumulate(maker.size for maker in self.makers))
        seconds = (node.seconds for node in problem.nodes[: problem.loss])
        self.made = [*accumulate(seconds)]

    def plan(
        self, budget: int, starts: Sequence[Sequence[int]], effort: Effort = ASKED
    ) -> Placed | None:
        """The fastest plan with transfers found within a budget in bytes, from sequences of node
        positions, of which the first is the best without transfers; None where none was found."""
        if self.idle:
            return None
        search = _Search(self, budget, starts)
        for part in effort.parts:
            search.halve(part, effort.halvings)
        return search.best

    def sweep(
        self,
        highest: int,
        least: int,
        start: Callable[[int], Sequence[int]],
        workers: int,
    ) -> Iterator[Placed]:
        """Plans for a grid of budgets from below the `highest` peak down to the `least`; `start`
        gives the sequence to start from for a budget. None of this depends on `workers`."""
        if self.idle:
            return
        budgets = grid(highest, least)[1::EVERY]
        with ThreadPoolExecutor(workers) as pool:
            found = pool.map(lambda budget: self.plan(budget, [start(budget)], SWEEP), budgets)
            yield from (placed for placed in found if placed is not None)

    def chosen(self, share: float, part: float) -> list[Maker]:
        """The makers that may bring back, but for those of a share of all bytes that take the least
        to run again, and those of the forward that run after a part of its time."""
        most = share * self.ends[-1]
        late = part * self.made[-1] if self.made else 0.0
        return [
            maker
            for maker, end in zip(self.makers, self.ends, strict=True)
            if end > most and (maker.node >= len(self.made) or self.made[maker.node] <= late)
        ]


class _Search:
    """The search for one budget."""

    def __init__(self, linker: Linker, budget: int, starts: Sequence[Sequence[int]]) -> None:
        self.linker = linker
        self.budget = budget
        self.start = starts[0]
        self.best: Placed | None = None
        for start in [*starts, range(len(linker.problem.nodes))]:
            self._keep(linker.placer.place(start, None, budget))

    def halve(self, part: float, times: int) -> None:
        """Looks for how many makers of a part of the forward may bring back: all, or the share of
        them for which the link is just not the one that others wait for."""
        low, high = 0.0, 1.0
        if not self._waits(low, part):
            return
        for _ in range(times):
            share = (low + high) / 2
            low, high = (share, high) if self._waits(share, part) else (low, share)

    def _waits(self, share: float, part: float) -> bool:
        """Whether the plan for a share has computations wait, or none was found."""
        linker = self.linker
        chosen = linker.chosen(share, part)
        if not chosen:
            return False
        rate = min(maker.rate for maker in chosen)
        price = 0.0 if share == 0 or rate == float("inf") else rate * BELOW
        found = priced(linker.problem, chosen, price)
        polished = Polisher(found.problem).polish({0: self.start}, self.budget)
        sequence, back = parted(found, polished.sequence)
        placed = linker.placer.place(sequence, back, self.budget)
        self._keep(placed)
        return placed is None or placed.waited > IDLE * placed.seconds

    def _keep(self, placed: Placed | None) -> None:
        if placed is not None and (self.best is None or placed.seconds < self.best.seconds):
            self.best = placed
