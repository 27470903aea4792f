"""What a budget counts: the bytes that a step takes in all. On the CPU they are those that it
requests with what was there before, on CUDA those that PyTorch's allocator reserves, also where
each step has inputs of its own."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from tightfit.schemas.costs import Costs
from tightfit.schemas.frontier import Frontier, ParetoPoint, pareto_points
from tightfit.schemas.graph.ownership import partial_gradients_by_owner
from tightfit.schemas.graph.planning_graph import PlanningGraph
from tightfit.schemas.graph.training_graph import NO_VALUE, Graph
from tightfit.schemas.link import HostLink
from tightfit.schemas.plan import BaselineBytes, GpuMemory
from tightfit.schemas.schedule import ScheduleStep
from tightfit.stages.combine.lowering.schedule import ScheduleLowering
from tightfit.stages.combine.refine_plan import PointSimulator, refine_point
from tightfit.stages.simulate.cuda_memory import minimize_reserved_memory, simulate_cuda_memory
from tightfit.util.budget import MIN_BUDGET, parse_budget
from tightfit.util.progress import ProgressCounter
from tightfit.util.solver_engines import HIGHS_ENGINE, SolverEngine


def baseline_bytes(graph: Graph) -> BaselineBytes:
    """The bytes of a step that no plan changes, each storage counted once."""

    def size(values: Iterable[int]) -> int:
        storages = {graph.values[value].storage for value in values if value != NO_VALUE}
        return sum(graph.storages[storage] for storage in storages)

    def of_kind(*kinds: str) -> int:
        return size(value.id for value in graph.values if value.kind in kinds)

    return BaselineBytes(
        parameters=of_kind("parameter"),
        gradients=size(parts[0] for parts in partial_gradients_by_owner(graph).values()),
        buffers=of_kind("buffer", "constant"),
        inputs=of_kind("input"),
        outputs=size(output.value for output in graph.outputs),
        loss=graph.loss_room and graph.loss_room + size(output.tangent for output in graph.outputs),
    )


BUDGET_DECREASES = 8
"""How often the requested bytes are lowered until those that are reserved fit."""
BUDGET_INCREASES = 4
"""How often they are raised again."""


@dataclass(frozen=True)
class BudgetAccounting:
    """Counts for the plans of one frontier; each search of `fitted`, by an engine, is `told`."""

    player: PointSimulator
    fixed: BaselineBytes
    engine: SolverEngine = HIGHS_ENGINE
    told: ProgressCounter = field(default_factory=ProgressCounter)

    @classmethod
    def of_step(
        cls, graph: Graph, costs: Costs, problem: PlanningGraph, link: HostLink | None = None
    ) -> BudgetAccounting:
        """The player of a graph, its costs and its condensed form; plans may take the `link`."""
        return cls(
            PointSimulator(graph, costs, ScheduleLowering(graph, problem), link),
            baseline_bytes(graph),
        )

    def max_searches(self, frontier: Frontier) -> int:
        """How many searches `fitted` makes at most."""
        if not self.counts_reserved_bytes:
            return 0
        return (BUDGET_DECREASES + BUDGET_INCREASES + 1) * (1 if frontier.link is None else 2)

    @property
    def counts_reserved_bytes(self) -> bool:
        """Whether budgets count reserved bytes."""
        return self.player.costs.device.type == "cuda"

    def keep_all(self, frontier: Frontier) -> int:
        """The bytes of the step that keeps everything."""
        if not self.counts_reserved_bytes:
            return self.fixed.bytes_before_step + frontier.keep_all_peak
        return self._reserved(self.player.keep_all_steps())

    def budget(self, written: str, frontier: Frontier) -> int:
        """A budget as written, in bytes; that of "min" is what the smallest plan takes. Raises
        ConfigError where it is none."""
        if written == MIN_BUDGET:
            return self.of(self.least(frontier))
        return parse_budget(written).total(self.fixed.floor, self.keep_all(frontier))

    def of(self, point: ParetoPoint, enough: int | None = None) -> int:
        """The bytes of a point, the least that are known or at most `enough`."""
        if not self.counts_reserved_bytes:
            return self.fixed.bytes_before_step + point.peak
        steps = self.player.opener.opened(point)
        return minimize_reserved_memory(self.player.graph, self.player.costs, steps, enough).renewed

    def least(self, frontier: Frontier) -> ParetoPoint:
        """The point that takes the least."""
        if not self.counts_reserved_bytes:
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
        self, steps: Sequence[ScheduleStep], frontier: Frontier, total: int | None
    ) -> GpuMemory | None:
        """What a schedule takes of a GPU, with an arena where it exceeds a total without one; None
        on the CPU."""
        if not self.counts_reserved_bytes:
            return None
        graph, costs = self.player.graph, self.player.costs
        if total is None:
            found = simulate_cuda_memory(graph, costs, steps)
        else:
            found = minimize_reserved_memory(graph, costs, steps, total)
        most = found.most
        return GpuMemory(
            requested=most.requested,
            allocated=most.allocated,
            reserved=most.reserved,
            steady_reserved=found.renewed,
            workspaces=found.workspaces,
            keep_all=self.keep_all(frontier),
            arena=found.arena,
        )

    def search_fitting_point(
        self,
        frontier: Frontier,
        first: ParetoPoint | None,
        total: int,
        sequences: Sequence[Sequence[int]] = (),
        least: float = math.inf,
    ) -> ParetoPoint | None:
        """The fastest plan known whose reserved bytes are within a total, None where none is.

        The search starts from the `first`, whose requested bytes are within the budget, lowers
        these by what is reserved in excess, a few times, raises them again, looks at the points of
        the frontier, and searches further for the requested bytes of the best. With a link it does
        so without transfers, too. `sequences` and `least` are as `refined` takes them.
        """
        find = partial(self._search_fitting_point, total=total, sequences=sequences, least=least)
        found = find(frontier, first)
        if frontier.link is None:
            return found
        plain = replace(frontier, points=frontier.without_transfers, link=None, dominated=[])
        own = None if first is None else plain.within(first.peak)
        other = replace(self, player=replace(self.player, link=None))
        known = [found, other._search_fitting_point(plain, own, total, sequences, least)]
        return min(filter(None, known), key=lambda point: point.seconds, default=None)

    def _search_fitting_point(
        self,
        frontier: Frontier,
        first: ParetoPoint | None,
        total: int,
        sequences: Sequence[Sequence[int]],
        least: float,
    ) -> ParetoPoint | None:
        found = self._lower_budget(frontier, first, total)
        best = self.fitting(frontier, total, math.inf if found is None else found.seconds) or found
        if best is None or best is first:
            return best
        further = self._refine_point(frontier, best.peak, sequences=sequences, least=least)
        self.told()
        fits = (
            further is not None
            and further.seconds < best.seconds
            and self.of(further, total) <= total
        )
        return further if fits else best

    def fitting(
        self, frontier: Frontier, total: int, below: float = math.inf
    ) -> ParetoPoint | None:
        """The frontier's fastest point whose reserved bytes are within a total, None where none is
        that takes less than the seconds that it has to be `below`."""
        for point in sorted(frontier.points, key=lambda point: (point.seconds, point.peak)):
            if point.seconds >= below:
                return None
            if self._requested(point) <= total and self.of(point, total) <= total:
                return point
        return None

    def _requested(self, point: ParetoPoint) -> int:
        """What no plan with the peak of a point reserves less than."""
        return self.fixed.bytes_before_step + point.peak

    def _lower_budget(
        self, frontier: Frontier, point: ParetoPoint | None, total: int
    ) -> ParetoPoint | None:
        """A plan that fits, by brief searches, each from what the ones before it found."""
        above = None
        for _ in range(BUDGET_DECREASES):
            if point is None:
                return None
            excess = self.of(point, total) - total
            if excess <= 0:
                return point if above is None else self._raise_budget(frontier, point, above, total)
            above = point.peak
            frontier = _add_point(frontier, point)
            point = self._refine_point(frontier, point.peak - excess, brief=True)
            self.told()
        return None

    def _raise_budget(
        self, frontier: Frontier, fits: ParetoPoint, above: int, total: int
    ) -> ParetoPoint:
        """A faster plan that fits, between the peak of one that does and one that does not: these
        differ in more than their peaks."""
        low = fits.peak
        for _ in range(BUDGET_INCREASES):
            middle = (low + above) // 2
            frontier = _add_point(frontier, fits)
            found = self._refine_point(frontier, middle, brief=True)
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
    def _refine_point(self) -> Callable[..., ParetoPoint | None]:
        """`refined` for the step."""
        return partial(refine_point, self.player, engine=self.engine)

    def _reserved(self, steps: Sequence[ScheduleStep]) -> int:
        return simulate_cuda_memory(self.player.graph, self.player.costs, steps).renewed


def _add_point(frontier: Frontier, point: ParetoPoint) -> Frontier:
    """A frontier with a further point to start from."""
    return replace(frontier, points=pareto_points([*frontier.points, point]))


def describe_allocator_overhead(memory: GpuMemory | None) -> str:
    """What a message says of the bytes that the allocator needs beyond those that are requested, as
    a clause; "" on the CPU."""
    if memory is None:
        return ""
    ahead = f", {memory.arena:,} of them at once, ahead of the first step" if memory.arena else ""
    kept = f", {memory.workspaces:,} of them libraries' workspaces" if memory.workspaces else ""
    more = memory.steady_reserved - memory.reserved
    looping = f", {more:,} more where each step has inputs of its own" if more else ""
    return (
        f"; PyTorch's allocator reserves {memory.reserved:,} bytes of the GPU{ahead}, "
        f"{memory.reserved - memory.requested:,} more than the {memory.requested:,} that are "
        f"requested of it{kept}{looping}, and CUDA's context comes on top"
    )
