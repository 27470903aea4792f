"""The frontier of a strategy: its candidates, polished over a grid of budgets and replayed."""

from __future__ import annotations

from collections.abc import Sequence

from schemas.costs import Costs
from schemas.errors import ArtifactError
from schemas.frontier import Frontier, Point, pareto
from schemas.graph import Graph
from schemas.problem import Problem
from stages.combine.bounds import least_peak, least_seconds
from stages.combine.polish.polisher import Polished, Polisher
from stages.combine.schedule.opening import Opener
from stages.combine.strategies.strategy import About, Candidate
from stages.replay.referee import Replay, replay


def frontier(
    graph: Graph,
    graph_digest: str,
    costs: Costs,
    problem: Problem,
    about: About,
    candidates: Sequence[Candidate],
    keep_all: Candidate,
    workers: int = 1,
) -> Frontier:
    """The plans of a strategy, each replayed at true sizes, by falling peak.

    `problem` is the graph condensed, `candidates` what the strategy made of it and `keep_all` the
    captured order, which polish starts from too, and which is a point itself where ops in place
    take longer. A baseline keeps its candidates as they are, with no op in place. The result does
    not depend on `workers`, the number of threads. Raises ScheduleError when replay refuses a
    candidate.
    """
    nodes = {node.op for node in problem.nodes}
    if not all(nodes.issuperset(candidate.executions) for candidate in candidates):
        raise ArtifactError("the blocks run ops that are none of the graph's: make them of it")
    played = _Played(graph, costs, problem)
    everything = played.replay(keep_all.executions, in_place=False)
    if not about.baseline:
        points = _polished(played, [*candidates, keep_all], workers)
        points.append(played.point(keep_all.executions, keep_all, False))
    else:
        points = [played.point(candidate.executions, candidate, False) for candidate in candidates]
    return Frontier(
        strategy=about.name,
        model=graph.model,
        graph=graph_digest,
        keep_all_peak=everything.peak,
        keep_all_seconds=everything.seconds,
        lower_bound_peak=least_peak(problem),
        lower_bound_seconds=least_seconds(graph, costs, problem, everything.peak),
        optimal_in=about.optimal_in,
        points=pareto(points),
    )


class _Played:
    """Replays executions of one graph."""

    def __init__(self, graph: Graph, costs: Costs, problem: Problem) -> None:
        self.graph = graph
        self.costs = costs
        self.problem = problem
        self.opener = Opener(graph, problem)

    def replay(self, executions: Sequence[int], in_place: bool) -> Replay:
        return replay(self.graph, self.costs, self.opener.schedule(executions, in_place))

    def point(
        self, executions: Sequence[int], candidate: Candidate, in_place: bool, found: str = ""
    ) -> Point:
        before = self.replay(candidate.executions, in_place=False)
        after = before if not in_place else self.replay(executions, in_place=True)
        return Point(
            peak=after.peak,
            seconds=after.seconds,
            before_peak=before.peak,
            before_seconds=before.seconds,
            in_place=in_place,
            executions=list(executions),
            sequence=list(candidate.sequence),
            origin=candidate.origin + found,
        )


def _polished(played: _Played, sources: Sequence[Candidate], workers: int) -> list[Point]:
    """Polished points; the last of the sources is the one that keeps everything."""
    nodes = played.problem.nodes
    position = {node.op: index for index, node in enumerate(nodes)}
    starts = [[position[op] for op in source.executions] for source in sources[:-1]]
    found = Polisher(played.problem).sweep(starts, least_peak(played.problem), workers)
    unique: dict[tuple[int, ...], Polished] = {}
    for polished in found:
        unique.setdefault(tuple(polished.sequence), polished)
    return [
        played.point(
            [nodes[index].op for index in sequence], sources[polished.start], True, ", polished"
        )
        for sequence, polished in unique.items()
    ]
