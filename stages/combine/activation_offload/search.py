"""Decides together what is kept, run again, or sent to an offload target and brought back.

Where some makers may bring back what they made, for a price a byte, the search of
`stages.combine.local_search` decides it on the problem with prices (`priced`), as if transfers took
no time. Then transfers are placed and the clocks of the streams say what the plan takes
(`placing`). How many may is looked for by halving: fewer where computations wait for the link, else
more. First may leave what takes the longest a byte to run again; the least of these rates is the
price."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate

from tightfit.schemas.actions import Action
from tightfit.schemas.costs import Costs
from tightfit.schemas.frontier import ParetoPoint
from tightfit.schemas.graph.planning_graph import PlanningGraph
from tightfit.schemas.link import HostLink
from tightfit.schemas.plan import PlanCost
from tightfit.stages.combine.activation_offload.bound import TransferBoundSolver
from tightfit.stages.combine.activation_offload.placement import PlacedTransfers, TransferPlacer
from tightfit.stages.combine.activation_offload.pricing import (
    PrefetchableNode,
    prefetchable_nodes,
    price_prefetches,
    split_prefetches,
)
from tightfit.stages.combine.activation_offload.timed_search import TimedTransferSearch
from tightfit.stages.combine.local_search.anneal import OFFLOAD_FINE, OFFLOAD_WIDE
from tightfit.stages.combine.local_search.search import LocalSearch, budget_grid
from tightfit.stages.combine.local_search.views import ViewTimes
from tightfit.stages.combine.milp import SolverLimits
from tightfit.util.progress import ProgressCallback, ProgressCounter
from tightfit.util.solver_engines import HIGHS_ENGINE, SolverEngine

TRANSFER_BUDGET_INTERVAL = 4
"""One budget of a frontier's grid in this many is planned with transfers."""
IDLE_WAIT_SHARE = 0.002
"""A plan whose computations wait for less than this part of it has room for more transfers."""
MAX_IDLE_ROUNDS, MIN_ROUND_GAIN = 3, 2e-4
"""After how many rounds in a row it ends that gained less than this part of the time."""
MAX_WARM_STARTS, MAX_NEIGHBOR_PLANS = 2, 2
"""From how many starts of programs, and of plans of the frontier, is searched at most."""
FINE_SEARCHES = 2
"""How often a patient search goes on from the best."""
FAR_GAP = 0.02
"""A plan is far from the bound where it takes longer by more than this part of it."""
PRICE_FACTOR = 1.0 - 1e-9
"""A price is this much below what it stands for, so that nothing is sent that is as fast to run."""


@dataclass(frozen=True)
class SearchEffort:
    """How hard is looked for a plan. Makers of the first `parts` of the forward's time alone are
    tried, since what is made late has little time to leave. Then: how often what may leave is
    halved, how often a share beside the best so far is tried, and from how many sequences all of
    that starts. Last: how many `moves` for each node a search with the clocks of the streams makes,
    0 for none, how often it goes on from the best at most, and, where what it found is far from the
    bound, how many a patient one makes from each start (`patience`), and it makes `further`, each 0
    for none."""

    parts: tuple[float, ...]
    halvings: int
    extra_shares: int
    starts: int
    moves: int = 0
    rounds: int = 0
    slow_moves: int = 0
    further: int = 0

    @property
    def most(self) -> int:
        """How many searches it makes at most, where none of the programs' starts is left out."""
        looks = self.starts * len(self.parts) * (self.halvings + 1 + self.extra_shares)
        seeds = MAX_WARM_STARTS + MAX_NEIGHBOR_PLANS
        first = 1 + seeds + self.rounds if self.moves else 0
        patient = seeds + FINE_SEARCHES if self.slow_moves else 0
        return looks + first + patient + (1 + self.rounds if self.further else 0)


PRICE_EFFORT = SearchEffort((0.7,), 4, 3, 1)
"""Without the clocks of the streams, by the price alone."""
SWEEP_EFFORT = SearchEffort((0.7,), 4, 3, 1, 100, 2)
"""For one of many budgets."""
SWEEP_WORK, MIN_SWEEP_MOVES = 200_000_000, 20
"""Moves times nodes of a search for one of many budgets at most, and for each node at least: where
these are fewer, it goes by the price alone."""
TRIAL_EFFORT = SearchEffort((0.7,), 4, 3, 1, 100, 1)
"""For one of a few budgets that are tried for one that is asked for."""
FULL_EFFORT = SearchEffort((1.0, 0.7, 0.4), 4, 5, 2, 400, 12, 3000, 1600)
"""For a budget that is asked for."""


class TransferSearch:
    """Plans of one problem over one link; `leaving` are the storages that may leave, with the
    values by which they do, as late as they can, or `early` (`TransferPlacer`). The `engine` solves
    the programs that starts come from; without `views` these take no time."""

    def __init__(
        self,
        problem: PlanningGraph,
        link: HostLink,
        leaving: Mapping[int, int],
        early: bool = False,
        engine: SolverEngine = HIGHS_ENGINE,
        views: ViewTimes | None = None,
    ) -> None:
        self.problem = problem
        self.placer = TransferPlacer(problem, link, leaving, early, views)
        self.limits = SolverLimits(engine=engine)
        self.idle = link.bandwidth == 0 or not leaving
        self.makers = prefetchable_nodes(problem, leaving, link)
        self.ends = list(accumulate(maker.size for maker in self.makers))
        seconds = (node.seconds for node in problem.nodes[: problem.loss])
        self.made = [*accumulate(seconds)]

    @cached_property
    def viewed(self) -> float:
        """The seconds of views that every plan makes."""
        return self.placer.views.once(self.problem)

    @cached_property
    def timed_search(self) -> TimedTransferSearch:
        """The search with the clocks of the streams."""
        return TimedTransferSearch(self.problem, self.placer)

    @cached_property
    def moments(self) -> TransferBoundSolver:
        """The programs with the link."""
        placer = self.placer
        return TransferBoundSolver(self.problem, placer.link, placer.leaving, self.limits)

    def plan(
        self,
        budget: int,
        starts: Sequence[Sequence[int]],
        effort: SearchEffort = FULL_EFFORT,
        linked: Sequence[Sequence[Action]] = (),
        told: ProgressCounter | None = None,
    ) -> PlacedTransfers | None:
        """The fastest plan with transfers found within a budget in bytes, from sequences of node
        positions, of which the first is the best without transfers, and from `linked` plans with
        transfers, which may exceed the budget; None where none was found. Each search is `told`."""
        if self.idle:
            return None
        search = _BudgetTransferSearch(self, budget, starts, effort, told or ProgressCounter())
        search.begin(linked)
        for start in starts[: effort.starts]:
            for part in effort.parts:
                search.look(start, part)
        if effort.moves:
            search.move()
        return search.best

    def sweep(
        self,
        highest: int,
        least: int,
        start: Callable[[int], Sequence[int]],
        workers: int,
        linked: Callable[[int], Sequence[Sequence[Action]]] = lambda budget: (),
        report: ProgressCallback | None = None,
    ) -> Iterator[PlacedTransfers]:
        """Plans for a grid of budgets from below the `highest` peak down to the `least`; `start`
        gives the sequence to start from for a budget, and `linked` plans with transfers, from which
        the clocks of the streams are searched with. None of this depends on `workers`; `report` is
        told how many budgets are done."""
        if self.idle:
            return
        budgets = budget_grid(highest, least)[1::TRANSFER_BUDGET_INTERVAL]
        effort = _sweep_effort(len(self.problem.nodes))
        # What all budgets have in common is made once, ahead of the threads.
        self.timed_search, self.moments  # noqa: B018

        def planned(budget: int) -> PlacedTransfers | None:
            return self.plan(budget, [start(budget)], effort, linked(budget))

        with ThreadPoolExecutor(workers) as pool:
            for done, placed in enumerate(pool.map(planned, budgets), 1):
                if report is not None:
                    report(done, len(budgets), "")
                if placed is not None:
                    yield placed

    def chosen(self, share: float, part: float) -> list[PrefetchableNode]:
        """The makers that may bring back, but for those of a share of all bytes that take the least
        to run again, and those of the forward that run after a part of its time."""
        most = share * self.ends[-1]
        late = part * self.made[-1] if self.made else 0.0
        return [
            maker
            for maker, end in zip(self.makers, self.ends, strict=True)
            if end > most and (maker.node >= len(self.made) or self.made[maker.node] <= late)
        ]


def _sweep_effort(nodes: int) -> SearchEffort:
    """How hard is looked for a plan for one of many budgets, of a step of so many nodes."""
    moves = min(SWEEP_EFFORT.moves, SWEEP_WORK // max(nodes, 1) ** 2)
    return replace(SWEEP_EFFORT, moves=moves) if moves >= MIN_SWEEP_MOVES else PRICE_EFFORT


def frees_offloads_early(costs: Costs) -> bool:
    """Whether what leaves is freed early: where budgets count what CUDA's allocator reserves. What
    waits in small blocks until a large one is asked for has that one reserved beside it. Elsewhere
    what is freed late waits less where the link is slower than it was said to be."""
    return costs.device.type == "cuda"


class _BudgetTransferSearch:
    """The search for one budget."""

    def __init__(
        self,
        linker: TransferSearch,
        budget: int,
        starts: Sequence[Sequence[int]],
        effort: SearchEffort,
        told: ProgressCounter,
    ) -> None:
        self.linker = linker
        self.budget = budget
        self.effort = effort
        self.told = told
        self.best: PlacedTransfers | None = None
        self.seeds: list[list[int]] = []
        for start in [*starts, range(len(linker.problem.nodes))]:
            self._keep(linker.placer.place(start, None, budget))

    def begin(self, linked: Sequence[Sequence[Action]]) -> None:
        """Takes note of plans with transfers to start from."""
        for actions in linked:
            start = self.linker.timed_search.of_actions(actions)
            placed = self.linker.timed_search.placed(start, self.budget)
            self._keep(placed)
            self.seeds += [start]

    def look(self, start: Sequence[int], part: float) -> None:
        """Looks for the share of what makers of a part of the forward make that may not be brought
        back: by halving, until the link is just not waited for, then around the best."""
        tried: dict[float, float] = {}

        def waits(share: float) -> bool:
            placed = self._tried(share, part, start)
            tried[share] = math.inf if placed is None else placed.seconds
            return placed is None or placed.waited > IDLE_WAIT_SHARE * placed.seconds

        low, high = 0.0, 1.0
        for _ in range(self.effort.halvings):
            share = (low + high) / 2
            low, high = (share, high) if waits(share) else (low, share)
        if low == 0.0 and not waits(low):
            return
        for _ in range(self.effort.extra_shares):
            waits(_bisect_share(tried))

    def move(self) -> None:
        """Searches with the clocks of the streams, and with more moves where what is found is far
        from the bound."""
        drafts = self.linker.moments.transfer_warm_starts(self.budget)
        seeds = [self.linker.timed_search.drafted(*draft) for draft in drafts] + self.seeds
        self._move(seeds, self.effort.moves)
        if self.effort.slow_moves and self._is_far():
            self._wait(seeds, self.effort.slow_moves)
        if self.effort.further and self._is_far():
            self._move([], self.effort.further)

    def _wait(self, seeds: list[list[int]], moves: int) -> None:
        """Searches patiently from each start, then goes on from the best."""
        mover = self.linker.timed_search
        for seed, start in enumerate(seeds):
            found = mover.moved(start, self.budget, moves, seed, OFFLOAD_WIDE)
            self._searched(mover.placed(found, self.budget))
        for seed in range(len(seeds), len(seeds) + FINE_SEARCHES if self.best else 0):
            assert self.best is not None
            found = mover.moved(mover.start(self.best), self.budget, moves, seed, OFFLOAD_FINE)
            self._searched(mover.placed(found, self.budget))

    def _move(self, seeds: list[list[int]], moves: int) -> None:
        """Searches from the best so far, from what an integer program decides and from plans that
        were given, then from the best of that, as long as it gains something."""
        mover = self.linker.timed_search
        starts = [mover.start(self.best)] if self.best is not None else []
        starts += seeds
        last: list[int] = []
        for seed, start in enumerate(starts):
            last = mover.moved(start, self.budget, moves, seed)
            self._searched(mover.placed(last, self.budget))
        idle = 0
        for seed in range(len(starts), len(starts) + self.effort.rounds if starts else 0):
            before = self._seconds()
            start = last if self.best is None else mover.start(self.best)
            last = mover.moved(start, self.budget, moves, seed)
            gained = self._searched(mover.placed(last, self.budget))
            idle = 0 if gained and self._seconds() <= (1 - MIN_ROUND_GAIN) * before else idle + 1
            if idle == MAX_IDLE_ROUNDS:
                break

    def _seconds(self) -> float:
        return math.inf if self.best is None else self.best.seconds

    def _is_far(self) -> bool:
        """Whether the best is far from what no plan goes below."""
        linker = self.linker
        bound = linker.moments.bound(self.budget).seconds + linker.viewed
        return math.isfinite(bound) and self._seconds() > (1 + FAR_GAP) * bound

    def _tried(self, share: float, part: float, start: Sequence[int]) -> PlacedTransfers | None:
        """The plan for a share that a search from a sequence finds, None where it finds none."""
        linker = self.linker
        chosen = linker.chosen(share, part)
        rate = min((maker.rate for maker in chosen), default=0.0)
        price = 0.0 if share == 0 or rate == math.inf else rate * PRICE_FACTOR
        found = price_prefetches(linker.problem, chosen, price)
        views = linker.placer.views.with_prices(found.brings)
        annealed = LocalSearch(found.problem, views).improve({0: start}, self.budget)
        placed = linker.placer.place(*split_prefetches(found, annealed.sequence), self.budget)
        self._searched(placed)
        return placed

    def _searched(self, placed: PlacedTransfers | None) -> bool:
        """As `_keep`, of what a search found, which is told."""
        self.told()
        return self._keep(placed)

    def _keep(self, placed: PlacedTransfers | None) -> bool:
        """Keeps a plan that is better than the best so far; whether it is."""
        if placed is None or (self.best is not None and placed.seconds >= self.best.seconds):
            return False
        self.best = placed
        return True


def _bisect_share(tried: Mapping[float, float]) -> float:
    """A share between the one with the fewest seconds and the farther of its neighbors."""
    best = min(tried, key=lambda share: (tried[share], share))
    low = max((share for share in tried if share < best), default=0.0)
    high = min((share for share in tried if share > best), default=1.0)
    return (low + best) / 2 if best - low >= high - best else (best + high) / 2


TRANSFER_ORIGIN = ", with transfers"


def neighboring_points(points: Iterable[ParetoPoint], budget: int) -> list[ParetoPoint]:
    """The points with transfers, of points by falling peak, that are next to a budget in bytes:
    above it and within it, at most one each."""
    linked = [point for point in points if point.transfers]
    above = [point for point in linked if point.peak > budget][-1:]
    return above + [point for point in linked if point.peak <= budget][:1]


def transfer_point(
    source: ParetoPoint, actions: Sequence[Action], ceiling: int, cost: PlanCost
) -> ParetoPoint:
    """The point of a plan with transfers, found from one without, with what the simulator says of
    it."""
    return replace(
        source,
        peak=cost.peak,
        seconds=cost.time,
        local_search=True,
        in_place=True,
        in_place_threshold=ceiling,
        actions=list(actions),
        origin=source.origin.removesuffix(TRANSFER_ORIGIN) + TRANSFER_ORIGIN,
    )
