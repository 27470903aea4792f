"""What a budget counts: the bytes that a step takes in all. On the CPU they are those that it
requests with what was there before, on CUDA those that PyTorch's allocator reserves, also where
each step has inputs of its own."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from tightfit.schemas.budget import parse_budget
from tightfit.schemas.costs import Costs
from tightfit.schemas.engines import HIGHS, Engine
from tightfit.schemas.frontier import Frontier, Point, pareto
from tightfit.schemas.graph import Graph
from tightfit.schemas.link import HostLink
from tightfit.schemas.plan import Fixed, GpuMemory
from tightfit.schemas.problem import Problem
from tightfit.schemas.schedule import Step
from tightfit.schemas.telling import Tally
from tightfit.stages.combine.fixed import fixed_bytes
from tightfit.stages.combine.refine import Player, refined
from tightfit.stages.combine.schedule.opening import Opener
from tightfit.stages.replay.gpu_memory import on_gpu, reserving_least

TRIES = 8
"""How often the requested bytes are lowered until those that are reserved fit."""
RAISES = 4
"""How often they are raised again."""


@dataclass(frozen=True)
class InAll:
    """Counts for the plans of one frontier; each search of `fitted`, by an engine, is `told`."""

    player: Player
    fixed: Fixed
    engine: Engine = HIGHS
    told: Tally = field(default_factory=Tally)

    @classmethod
    def of_step(
        cls, graph: Graph, costs: Costs, problem: Problem, link: HostLink | None = None
    ) -> InAll:
        """The player of a graph, its costs and its condensed form; plans may take the `link`."""
        return cls(Player(graph, costs, Opener(graph, problem), link), fixed_bytes(graph))

    def tries(self, frontier: Frontier) -> int:
        """How many searches `fitted` makes at most."""
        if not self.reserves:
            return 0
        return (TRIES + RAISES + 1) * (1 if frontier.link is None else 2)

    @property
    def reserves(self) -> bool:
        """Whether budgets count reserved bytes."""
        return self.player.costs.device.type == "cuda"

    def keep_all(self, frontier: Frontier) -> int:
        """The bytes of the step that keeps everything."""
        if not self.reserves:
            return self.fixed.there_before + frontier.keep_all_peak
        return self._reserved(self.player.keep_all_steps())

    def budget(self, written: str, frontier: Frontier) -> int:
        """A budget as written, in bytes; raises ConfigError where it is none."""
        return parse_budget(written).total(self.fixed.floor, self.keep_all(frontier))

    def of(self, point: Point, enough: int | None = None) -> int:
        """The bytes of a point, the least that are known or at most `enough`."""
        if not self.reserves:
            return self.fixed.there_before + point.peak
        steps = self.player.opener.opened(point)
        return reserving_least(self.player.graph, self.player.costs, steps, enough).renewed

    def least(self, frontier: Frontier) -> Point:
        """The point that takes the least."""
        if not self.reserves:
            return frontier.points[-1]
        points = sorted(frontier.points, key=lambda point: (point.peak, point.seconds))
        best, least = points[0], self.of(points[0])
        for point in points[1:]:
            if self._requested(point) >= least:
                break
            size = self.of(point)
            if size < least:
                best, least = point, size
        return best

    def memory(
        self, steps: Sequence[Step], frontier: Frontier, total: int | None
    ) -> GpuMemory | None:
        """What a schedule takes of a GPU, with an arena where it exceeds a total without one; None
        on the CPU."""
        if not self.reserves:
            return None
        graph, costs = self.player.graph, self.player.costs
        if total is None:
            found = on_gpu(graph, costs, steps)
        else:
            found = reserving_least(graph, costs, steps, total)
        most = found.most
        return GpuMemory(
            requested=most.requested,
            allocated=most.allocated,
            reserved=most.reserved,
            renewed=found.renewed,
            workspaces=found.workspaces,
            keep_all=self.keep_all(frontier),
            arena=found.arena,
        )

    def fitted(
        self,
        frontier: Frontier,
        first: Point | None,
        total: int,
        sequences: Sequence[Sequence[int]] = (),
        least: float = math.inf,
    ) -> Point | None:
        """The fastest plan known whose reserved bytes are within a total, None where none is.

        The search starts from the `first`, whose requested bytes are within the budget, lowers
        these by what is reserved in excess, a few times, raises them again, looks at the points of
        the frontier, and searches further for the requested bytes of the best. With a link it does
        so without transfers, too. `sequences` and `least` are as `refined` takes them.
        """
        find = partial(self._fitted, total=total, sequences=sequences, least=least)
        found = find(frontier, first)
        if frontier.link is None:
            return found
        plain = replace(frontier, points=frontier.without_transfers, link=None, beaten=[])
        own = None if first is None else plain.within(first.peak)
        other = replace(self, player=replace(self.player, link=None))
        known = [found, other._fitted(plain, own, total, sequences, least)]
        return min(filter(None, known), key=lambda point: point.seconds, default=None)

    def _fitted(
        self,
        frontier: Frontier,
        first: Point | None,
        total: int,
        sequences: Sequence[Sequence[int]],
        least: float,
    ) -> Point | None:
        found = self._lowered(frontier, first, total)
        best = self.fitting(frontier, total, math.inf if found is None else found.seconds) or found
        if best is None or best is first:
            return best
        further = self._refined(frontier, best.peak, sequences=sequences, least=least)
        self.told()
        fits = (
            further is not None
            and further.seconds < best.seconds
            and self.of(further, total) <= total
        )
        return further if fits else best

    def fitting(self, frontier: Frontier, total: int, below: float = math.inf) -> Point | None:
        """The frontier's fastest point whose reserved bytes are within a total, None where none is
        that takes less than the seconds that it has to be `below`."""
        for point in sorted(frontier.points, key=lambda point: (point.seconds, point.peak)):
            if point.seconds >= below:
                return None
            if self._requested(point) <= total and self.of(point, total) <= total:
                return point
        return None

    def _requested(self, point: Point) -> int:
        """What no plan with the peak of a point reserves less than."""
        return self.fixed.there_before + point.peak

    def _lowered(self, frontier: Frontier, point: Point | None, total: int) -> Point | None:
        """A plan that fits, by brief searches, each from what the ones before it found."""
        above = None
        for _ in range(TRIES):
            if point is None:
                return None
            excess = self.of(point, total) - total
            if excess <= 0:
                return point if above is None else self._raised(frontier, point, above, total)
            above = point.peak
            frontier = _with(frontier, point)
            point = self._refined(frontier, point.peak - excess, brief=True)
            self.told()
        return None

    def _raised(self, frontier: Frontier, fits: Point, above: int, total: int) -> Point:
        """A faster plan that fits, between the peak of one that does and one that does not: these
        differ in more than their peaks."""
        low = fits.peak
        for _ in range(RAISES):
            middle = (low + above) // 2
            frontier = _with(frontier, fits)
            found = self._refined(frontier, middle, brief=True)
            self.told()
            if (
                found is not None
                and found.seconds < fits.seconds
                and self.of(found, total) <= total
            ):
                fits, low = found, middle
            else:
                above = middle
        return fits

    @property
    def _refined(self) -> Callable[..., Point | None]:
        """`refined` for the step."""
        return partial(refined, self.player, engine=self.engine)

    def _reserved(self, steps: Sequence[Step]) -> int:
        return on_gpu(self.player.graph, self.player.costs, steps).renewed


def _with(frontier: Frontier, point: Point) -> Frontier:
    """A frontier with a further point to start from."""
    return replace(frontier, points=pareto([*frontier.points, point]))


def margin(memory: GpuMemory | None) -> str:
    """What a verdict says of the bytes that the allocator needs beyond those that are requested, as
    a clause; "" on the CPU."""
    if memory is None:
        return ""
    ahead = f", {memory.arena:,} of them at once, ahead of the first step" if memory.arena else ""
    kept = f", {memory.workspaces:,} of them libraries' workspaces" if memory.workspaces else ""
    more = memory.renewed - memory.reserved
    looping = f", {more:,} more where each step has inputs of its own" if more else ""
    return (
        f"; PyTorch's allocator reserves {memory.reserved:,} bytes of the GPU{ahead}, "
        f"{memory.reserved - memory.requested:,} more than the {memory.requested:,} that are "
        f"requested of it{kept}{looping}, and CUDA's context comes on top"
    )
