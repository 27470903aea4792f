"""The options of clusters, each found once for all equal ones, from the lowest up (Z 3.2.2)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TypeAlias

from tightfit.schemas.blocks import planning_graph_digest
from tightfit.schemas.graph.planning_graph import PlanningGraph
from tightfit.stages.combine.bounds.lower_bounds import peak_lower_bound
from tightfit.stages.combine.checkmate.milp import (
    CheckmateSolution,
    TaskRun,
    executed_nodes,
    keep_all_runs,
    recompute_all_runs,
    solve_checkmate,
    total_run_seconds,
)
from tightfit.stages.combine.checkmate.tasks import build_node_tasks, forward_stages
from tightfit.stages.combine.hierarchy.cluster_chain import plan_cluster_chain
from tightfit.stages.combine.hierarchy.clusters import (
    Cluster,
    ClusterOption,
    ClusterOptions,
    build_cluster_tasks,
    isolate_cluster,
    lasting_storages,
)
from tightfit.stages.combine.milp import SolverLimits
from tightfit.stages.combine.tree_decomposition import (
    build_recursive_schedule,
    build_tree_decomposition,
)
from tightfit.stages.simulate.liveness import INFINITE_IN_PLACE_THRESHOLD, simulate_executions

MAX_TREEWIDTH_NODES = 600
"""Nodes of the largest cluster that is decomposed."""


def treewidth_options(problem: PlanningGraph, count: int) -> Iterator[ClusterOption]:
    """The schedules of a tree decomposition for so many peaks, from below what keeping everything
    takes down to the least, of a cluster that is a problem by itself."""
    if len(problem.nodes) > MAX_TREEWIDTH_NODES:
        return
    whole = _forward_first(problem)
    decomposition = build_tree_decomposition(whole)
    everything = range(len(problem.nodes))
    played = simulate_executions(
        problem, everything, in_place=True, ceiling=INFINITE_IN_PLACE_THRESHOLD
    )
    highest, least = max(run.peak for run in played), peak_lower_bound(problem)
    for number in range(1, count + 1):
        sequence = build_recursive_schedule(
            whole, decomposition, highest - (highest - least) * number // count
        )
        if sequence is not None:
            yield ClusterOption.of(problem, sequence)


def _forward_first(problem: PlanningGraph) -> PlanningGraph:
    """The problem with a loss that reads what the forward ends in, so that all of the forward runs
    ahead of it."""
    loss = problem.loss
    read = {storage for node in problem.nodes[:loss] for storage in node.inputs}
    ends = [s for node in problem.nodes[:loss] for s in node.outputs if s not in read]
    nodes = list(problem.nodes)
    nodes[loss] = replace(nodes[loss], inputs=ends)
    return replace(problem, nodes=nodes)


ClusterKey: TypeAlias = tuple[str, str]


OPTION_LIMITS = SolverLimits(gap=3e-3, nodes=20, checks=100)


@dataclass(frozen=True)
class ClusterGrid:
    """How closely options are searched: `peaks` x `saves` pairs of limits a cluster, of which
    `options` are offered to a cluster of clusters, and what a solve may take."""

    peaks: int = 3
    saves: int = 4
    options: int = 8
    limits: SolverLimits = OPTION_LIMITS


@dataclass(frozen=True)
class OptionCost:
    """What an option of a cluster costs: bytes between its forward and its backward, the most of
    both, and seconds."""

    save: int
    peak: int
    seconds: float

    def within(self, peak: int, save: int) -> bool:
        """Whether these are within limits."""
        return self.peak <= peak and self.save <= save


class ClusterOptionFinder:
    """Finds options of clusters."""

    def __init__(self, grid: ClusterGrid) -> None:
        self.grid = grid
        self.known: dict[ClusterKey, list[tuple[int, ClusterOption]]] = {}

    def of(self, problem: PlanningGraph, cluster: Cluster) -> list[ClusterOption]:
        """The options of a cluster of a problem, in its positions; keep everything is first."""
        return [option for _, option in self._saves(problem, cluster)]

    def _saves(self, problem: PlanningGraph, cluster: Cluster) -> list[tuple[int, ClusterOption]]:
        """The options of a cluster with what they keep."""
        alone, inner = isolate_cluster(problem, cluster, lasting_storages(problem))
        key = (planning_graph_digest(alone), repr(inner.members))
        if key not in self.known:
            found = self._found(alone, inner)
            self.known[key] = [(option_cost(alone, option).save, option) for option in found]
        nodes = [*cluster.forward, problem.loss, *cluster.backward]
        return [
            (
                save,
                ClusterOption(
                    tuple(nodes[node] for node in option.forward),
                    tuple(nodes[node] for node in option.backward),
                ),
            )
            for save, option in self.known[key]
        ]

    def members(self, problem: PlanningGraph, cluster: Cluster) -> list[ClusterOptions]:
        """The members of a cluster with as many of their options as are offered, shared out by
        their nodes (Z 3.4.5)."""
        count = len(cluster.forward) + len(cluster.backward)
        total = self.grid.options * len(cluster.members)
        found = []
        for member in cluster.members:
            own = len(member.forward) + len(member.backward)
            number = max(min(total * own // max(count, 1), 2 * self.grid.options), 2)
            options = self._saves(problem, member)
            places = select_spread_options([save for save, _ in options], number)
            found.append(ClusterOptions(member, [options[place][1] for place in places]))
        return found

    def _found(self, problem: PlanningGraph, cluster: Cluster) -> list[ClusterOption]:
        """The options of a cluster that is a problem by itself."""
        everything = ClusterOption(cluster.forward, cluster.backward)
        found = [everything, *_recompute_option(problem)]
        if len(found) > 1:
            solved = list(self._solved(problem, cluster, found))
            found += [*treewidth_options(problem, self.grid.peaks), *solved]
        return pareto_options(problem, found)

    def _solved(
        self, problem: PlanningGraph, cluster: Cluster, known: Sequence[ClusterOption]
    ) -> Iterator[ClusterOption]:
        """What the program finds for the limits of the grid, the loosest first."""
        tasks = (
            build_cluster_tasks(
                problem, [], self.members(problem, cluster), lasting_storages(problem)
            )
            if cluster.members
            else build_node_tasks(problem)
        )
        stages = forward_stages(tasks)
        figures = [option_cost(problem, option) for option in known]
        starts = [
            _WarmStart.of(problem, chosen)
            for chosen in (keep_all_runs(tasks, stages), recompute_all_runs(tasks, stages))
        ]
        for chosen in plan_cluster_chain(tasks, stages, self.grid.peaks) if cluster.members else ():
            starts.append(_WarmStart.of(problem, chosen))
            figures.append(starts[-1].figures)
            yield starts[-1].option
        proven: list[tuple[int, int, float]] = []
        for peak, save in _limit_pairs(figures, self.grid):
            fits = [f.seconds for f in figures if f.within(peak, save)]
            bound = max((b for p, s, b in proven if p >= peak and s >= save), default=0.0)
            if fits and min(fits) <= bound * (1 + self.grid.limits.gap):
                continue
            start = _fastest_start(starts, peak, save)
            solution = solve_checkmate(tasks, stages, peak, save, self.grid.limits, start)
            if solution is None:
                continue
            proven.append((peak, save, solution.bound))
            found = _WarmStart.of(problem, solution.chosen)
            starts.append(found)
            figures.append(found.figures)
            yield found.option


@dataclass(frozen=True)
class _WarmStart:
    """Runs of tasks that a program may start from, as an option with what that costs; `seconds` are
    those that the program counts."""

    chosen: list[TaskRun]
    option: ClusterOption
    figures: OptionCost
    seconds: float

    @classmethod
    def of(cls, problem: PlanningGraph, chosen: list[TaskRun]) -> _WarmStart:
        """Runs of tasks of a problem."""
        option = ClusterOption.of(problem, executed_nodes(chosen))
        return cls(chosen, option, option_cost(problem, option), total_run_seconds(chosen))


def _fastest_start(starts: Sequence[_WarmStart], peak: int, save: int) -> CheckmateSolution | None:
    """The fastest known runs within limits, None where none are."""
    fitting = [start for start in starts if start.figures.within(peak, save)]
    if not fitting:
        return None
    start = min(fitting, key=lambda start: start.seconds)
    return CheckmateSolution(start.chosen, peak, save, start.seconds, 0.0)


def option_cost(problem: PlanningGraph, option: ClusterOption) -> OptionCost:
    """What an option of a cluster costs that is a problem by itself."""
    order = [*option.forward, problem.loss, *option.backward]
    played = simulate_executions(problem, order, in_place=True, ceiling=INFINITE_IN_PLACE_THRESHOLD)
    return OptionCost(
        save=played[len(option.forward)].before,
        peak=max(run.peak for run in played),
        seconds=sum(run.seconds for run in played),
    )


def pareto_options(problem: PlanningGraph, options: Sequence[ClusterOption]) -> list[ClusterOption]:
    """The first option and those that none beats in all that it costs, the most kept first."""
    rated = [(option_cost(problem, option), option) for option in dict.fromkeys(options)]
    worth = rated[:1]
    for figures, option in sorted(rated[1:], key=lambda pair: pair[0].seconds):
        if not any(
            other.save <= figures.save
            and other.peak <= figures.peak
            and other.seconds <= figures.seconds
            for other, _ in worth
        ):
            worth.append((figures, option))
    ranked = sorted(worth[1:], key=lambda pair: (-pair[0].save, pair[0].seconds))
    return [worth[0][1], *(option for _, option in ranked)]


def select_spread_options(sizes: Sequence[int], count: int) -> list[int]:
    """The places of at most so many options, of which `sizes` says what they keep, the most first:
    the most, the least, the one closest to the middle of the widest gap between two that are
    chosen, and so on (Z 3.4.5, where sizes are peaks)."""
    if len(sizes) <= count:
        return list(range(len(sizes)))
    places = {0, len(sizes) - 1}
    while len(places) < count:
        gaps = [pair for pair in pairwise(sorted(places)) if pair[1] - pair[0] > 1]
        low, high = max(gaps, key=lambda pair: (sizes[pair[0]] - sizes[pair[1]], pair[1] - pair[0]))
        middle, center = (sizes[low] + sizes[high]) / 2, (low + high) / 2
        near = {place: abs(place - center) for place in range(low + 1, high)}
        places.add(min(near, key=lambda place: (abs(sizes[place] - middle), near[place])))
    return sorted(places)


def _recompute_option(problem: PlanningGraph) -> Iterator[ClusterOption]:
    """Everything that can is made again ahead of the backward."""
    loss = problem.loss
    further = [node for node in range(loss) if problem.can_recompute(problem.nodes[node])]
    late = range(loss + 1, len(problem.nodes))
    option = ClusterOption.of(problem, [*range(loss + 1), *further, *late])
    if len(option.forward) + len(option.backward) >= len(problem.nodes):
        yield option


def _limit_pairs(figures: Sequence[OptionCost], grid: ClusterGrid) -> Iterator[tuple[int, int]]:
    """Pairs of limits for peak and save, the loosest first, between what is known."""
    peaks = [max(f.peak for f in figures), min(f.peak for f in figures)]
    saves = [max(f.save for f in figures), min(f.save for f in figures)]
    for peak in _spread_values(peaks[0], peaks[1], grid.peaks):
        for save in _spread_values(min(saves[0], peak), saves[1], grid.saves):
            yield peak, save


def _spread_values(high: int, low: int, count: int) -> list[int]:
    steps = max(count - 1, 1)
    return sorted({high - (high - low) * step // steps for step in range(count)}, reverse=True)
