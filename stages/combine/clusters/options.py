"""The options of clusters, each found once for all equal ones, from the lowest up (Z 3.2.2)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeAlias

from tightfit.schemas.blocks import problem_digest
from tightfit.schemas.problem import Problem
from tightfit.stages.combine.clusters.cluster import Cluster, local, throughout
from tightfit.stages.combine.clusters.sequence import by_sequence
from tightfit.stages.combine.clusters.treewidth import by_treewidth
from tightfit.stages.combine.clusters.ways import Option, Optional, tasks_of_clusters
from tightfit.stages.combine.moment.limits import Limits
from tightfit.stages.combine.unrolled.frontier import Solution, fastest, nodes_of
from tightfit.stages.combine.unrolled.program import Chosen
from tightfit.stages.combine.unrolled.starts import all_again, all_kept, seconds_of
from tightfit.stages.combine.unrolled.tasks import forward_stages, tasks_of_nodes
from tightfit.stages.replay.line import FASTEST, executions

Key: TypeAlias = tuple[str, str]


LIMITS = Limits(gap=3e-3, nodes=20, checks=100)


@dataclass(frozen=True)
class Grid:
    """How closely options are searched: `peaks` x `saves` pairs of limits a cluster, of which
    `options` are offered to a cluster of clusters, and what a solve may take."""

    peaks: int = 3
    saves: int = 4
    options: int = 8
    limits: Limits = LIMITS


@dataclass(frozen=True)
class Figures:
    """What an option of a cluster costs: bytes between its forward and its backward, the most of
    both, and seconds."""

    save: int
    peak: int
    seconds: float

    def within(self, peak: int, save: int) -> bool:
        """Whether these are within limits."""
        return self.peak <= peak and self.save <= save


class Options:
    """Finds options of clusters."""

    def __init__(self, grid: Grid) -> None:
        self.grid = grid
        self.known: dict[Key, list[tuple[int, Option]]] = {}

    def of(self, problem: Problem, cluster: Cluster) -> list[Option]:
        """The options of a cluster of a problem, in its positions; keep everything is first."""
        return [option for _, option in self._saves(problem, cluster)]

    def _saves(self, problem: Problem, cluster: Cluster) -> list[tuple[int, Option]]:
        """The options of a cluster with what they keep."""
        alone, inner = local(problem, cluster, throughout(problem))
        key = (problem_digest(alone), repr(inner.members))
        if key not in self.known:
            found = self._found(alone, inner)
            self.known[key] = [(figures_of(alone, option).save, option) for option in found]
        nodes = [*cluster.forward, problem.loss, *cluster.backward]
        return [
            (
                save,
                Option(
                    tuple(nodes[node] for node in option.forward),
                    tuple(nodes[node] for node in option.backward),
                ),
            )
            for save, option in self.known[key]
        ]

    def members(self, problem: Problem, cluster: Cluster) -> list[Optional]:
        """The members of a cluster with as many of their options as are offered, shared out by
        their nodes (Z 3.4.5)."""
        count = len(cluster.forward) + len(cluster.backward)
        total = self.grid.options * len(cluster.members)
        found = []
        for member in cluster.members:
            own = len(member.forward) + len(member.backward)
            number = max(min(total * own // max(count, 1), 2 * self.grid.options), 2)
            options = self._saves(problem, member)
            places = selected([save for save, _ in options], number)
            found.append(Optional(member, [options[place][1] for place in places]))
        return found

    def _found(self, problem: Problem, cluster: Cluster) -> list[Option]:
        """The options of a cluster that is a problem by itself."""
        everything = Option(cluster.forward, cluster.backward)
        found = [everything, *_recomputed(problem)]
        if len(found) > 1:
            solved = list(self._solved(problem, cluster, found))
            found += [*by_treewidth(problem, self.grid.peaks), *solved]
        return worth_having(problem, found)

    def _solved(
        self, problem: Problem, cluster: Cluster, known: Sequence[Option]
    ) -> Iterator[Option]:
        """What the program finds for the limits of the grid, the loosest first."""
        tasks = (
            tasks_of_clusters(problem, [], self.members(problem, cluster), throughout(problem))
            if cluster.members
            else tasks_of_nodes(problem)
        )
        stages = forward_stages(tasks)
        figures = [figures_of(problem, option) for option in known]
        starts = [
            _Start.of(problem, chosen)
            for chosen in (all_kept(tasks, stages), all_again(tasks, stages))
        ]
        for chosen in by_sequence(tasks, stages, self.grid.peaks) if cluster.members else ():
            starts.append(_Start.of(problem, chosen))
            figures.append(starts[-1].figures)
            yield starts[-1].option
        proven: list[tuple[int, int, float]] = []
        for peak, save in _limits(figures, self.grid):
            fits = [f.seconds for f in figures if f.within(peak, save)]
            bound = max((b for p, s, b in proven if p >= peak and s >= save), default=0.0)
            if fits and min(fits) <= bound * (1 + self.grid.limits.gap):
                continue
            start = _fastest(starts, peak, save)
            solution = fastest(tasks, stages, peak, save, self.grid.limits, start)
            if solution is None:
                continue
            proven.append((peak, save, solution.bound))
            found = _Start.of(problem, solution.chosen)
            starts.append(found)
            figures.append(found.figures)
            yield found.option


@dataclass(frozen=True)
class _Start:
    """Runs of tasks that a program may start from, as an option with what that costs; `seconds` are
    those that the program counts."""

    chosen: list[Chosen]
    option: Option
    figures: Figures
    seconds: float

    @classmethod
    def of(cls, problem: Problem, chosen: list[Chosen]) -> _Start:
        """Runs of tasks of a problem."""
        option = Option.of(problem, nodes_of(chosen))
        return cls(chosen, option, figures_of(problem, option), seconds_of(chosen))


def _fastest(starts: Sequence[_Start], peak: int, save: int) -> Solution | None:
    """The fastest known runs within limits, None where none are."""
    fitting = [start for start in starts if start.figures.within(peak, save)]
    if not fitting:
        return None
    start = min(fitting, key=lambda start: start.seconds)
    return Solution(start.chosen, peak, save, start.seconds, 0.0)


def figures_of(problem: Problem, option: Option) -> Figures:
    """What an option of a cluster costs that is a problem by itself."""
    order = [*option.forward, problem.loss, *option.backward]
    played = executions(problem, order, in_place=True, ceiling=FASTEST)
    return Figures(
        save=played[len(option.forward)].before,
        peak=max(run.peak for run in played),
        seconds=sum(run.seconds for run in played),
    )


def worth_having(problem: Problem, options: Sequence[Option]) -> list[Option]:
    """The first option and those that none beats in all that it costs, the most kept first."""
    rated = [(figures_of(problem, option), option) for option in dict.fromkeys(options)]
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


def selected(sizes: Sequence[int], count: int) -> list[int]:
    """The places of at most so many options, of which `sizes` says what they keep, the most first:
    the most, the least, the one closest to the middle of the widest gap between two that are
    chosen, and so on (Z 3.4.5, where sizes are peaks)."""
    if len(sizes) <= count:
        return list(range(len(sizes)))
    places = {0, len(sizes) - 1}
    while len(places) < count:
        gaps = [pair for pair in pairwise(sorted(places)) if pair[1] - pair[0] > 1]
        low, high = max(gaps, key=lambda pair: (sizes[pair[0]] - sizes[pair[1]], pair[1] - pair[0]))
        middle, centre = (sizes[low] + sizes[high]) / 2, (low + high) / 2
        near = {place: abs(place - centre) for place in range(low + 1, high)}
        places.add(min(near, key=lambda place: (abs(sizes[place] - middle), near[place])))
    return sorted(places)


def _recomputed(problem: Problem) -> Iterator[Option]:
    """Everything that can is made again ahead of the backward."""
    loss = problem.loss
    further = [node for node in range(loss) if problem.can_repeat(problem.nodes[node])]
    late = range(loss + 1, len(problem.nodes))
    option = Option.of(problem, [*range(loss + 1), *further, *late])
    if len(option.forward) + len(option.backward) >= len(problem.nodes):
        yield option


def _limits(figures: Sequence[Figures], grid: Grid) -> Iterator[tuple[int, int]]:
    """Pairs of limits for peak and save, the loosest first, between what is known."""
    peaks = [max(f.peak for f in figures), min(f.peak for f in figures)]
    saves = [max(f.save for f in figures), min(f.save for f in figures)]
    for peak in _spread(peaks[0], peaks[1], grid.peaks):
        for save in _spread(min(saves[0], peak), saves[1], grid.saves):
            yield peak, save


def _spread(high: int, low: int, count: int) -> list[int]:
    steps = max(count - 1, 1)
    return sorted({high - (high - low) * step // steps for step in range(count)}, reverse=True)
