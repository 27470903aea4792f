"""Refines the plan for one budget: a frontier has plans for a grid of budgets, which lie a few
percent below the one that is asked."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

from tightfit.schemas.costs import Costs
from tightfit.schemas.engines import HIGHS, Engine
from tightfit.schemas.errors import ArtifactError
from tightfit.schemas.frontier import Frontier, Point
from tightfit.schemas.graph import Graph
from tightfit.schemas.link import HostLink
from tightfit.schemas.plan import PlanCost
from tightfit.schemas.schedule import Step
from tightfit.schemas.telling import Tally
from tightfit.stages.combine.bounds import seconds_of_views
from tightfit.stages.combine.polish.polisher import Polisher
from tightfit.stages.combine.polish.refining import MOST
from tightfit.stages.combine.polish.searcher import Polished
from tightfit.stages.combine.polish.views import Views, views_of
from tightfit.stages.combine.schedule.executions import runs
from tightfit.stages.combine.schedule.leaving import leaving
from tightfit.stages.combine.schedule.opening import Opener
from tightfit.stages.combine.transfers.points import linked_point, next_to
from tightfit.stages.combine.transfers.search import AGAIN, ASKED, Effort, Linker, frees_early
from tightfit.stages.replay.referee import Replay, replay

AROUND = 2
"""How many points on either side of the budget the search starts from."""


@dataclass(frozen=True)
class Player:
    """Replays plans of a frontier, which must say of them what comes out."""

    graph: Graph
    costs: Costs
    opener: Opener
    link: HostLink | None = None

    @cached_property
    def views(self) -> Views:
        """The views of the step."""
        return views_of(self.graph, self.costs, self.opener.problem)

    @cached_property
    def polisher(self) -> Polisher:
        """What searches for plans of the step."""
        return Polisher(self.opener.problem, self.views)

    @cached_property
    def _checked(self) -> dict[int, Point]:
        """Points whose replay says what they do, by their identity."""
        return {}

    def played(self, point: Point) -> Replay:
        """The replay of a point; raises ArtifactError where the frontier says something else."""
        found = self._replayed(point)
        _compare("a plan", PlanCost(point.seconds, point.peak), found)
        self._checked[id(point)] = point
        return found

    def check(self, point: Point) -> None:
        """Raises ArtifactError where a point costs something else than the frontier says."""
        if id(point) not in self._checked:
            self.played(point)

    def check_keep_all(self, said: PlanCost) -> None:
        """Raises ArtifactError where the captured order costs something else."""
        found = replay(self.graph, self.costs, self.keep_all_steps())
        _compare("keeping everything", said, found)

    def keep_all_steps(self) -> list[Step]:
        """The schedule of the captured order, which keeps everything."""
        captured = [node.op for node in self.opener.problem.nodes]
        return self.opener.schedule(captured, in_place=False)

    def at_cost(self, point: Point) -> Point:
        """A point with the peak and the seconds that its replay has."""
        found = self._replayed(point)
        costing = replace(point, peak=found.peak, seconds=found.seconds)
        self._checked[id(costing)] = costing
        return costing

    def _replayed(self, point: Point) -> Replay:
        return replay(self.graph, self.costs, self.opener.opened(point), link=self.link)


def searches(link: HostLink | None) -> int:
    """How many searches `refined` makes at most, with a link or without."""
    return MOST + (ASKED.most if link is not None else 0)


def refined(
    player: Player,
    frontier: Frontier,
    budget: int,
    sequences: Sequence[Sequence[int]] = (),
    least: float = math.inf,
    engine: Engine = HIGHS,
    brief: bool = False,
    told: Tally | None = None,
) -> Point | None:
    """The frontier's point within a budget in bytes or, where that is faster, what a search finds
    from the points without transfers around the budget and from further `sequences` of node
    positions, and with a link what is found from there, by an `engine`. With `least`, seconds that
    no plan goes below, the search is patient where it is not near to them; a `brief` one is for one
    of a few budgets that are tried for one that is asked for.

    What is found counts as a plan that comes from the frontier's point, of the least peak where
    none fits. None where neither has one. Raises ArtifactError where a point costs something else
    than it says. Each search is `told`, of `searches` at most.
    """
    told = told or Tally()
    within, plain = frontier.within(budget), frontier.without_transfers
    if not plain:
        return within
    above = [point for point in plain if point.peak > budget][-AROUND:]
    below = [point for point in plain if point.peak <= budget][:AROUND]
    for point in (*above, *below):
        player.check(point)
    found_by = (
        _briefly if brief else partial(_patiently, sequences=sequences, least=least, told=told)
    )
    searched = _searched(player, below, above, budget, found_by)
    found = [point for point in (within, searched) if point is not None and point.peak <= budget]
    if player.link is not None:
        given = next_to(frontier.points, budget)
        around = [*below, *above]
        effort = AGAIN if brief else ASKED
        linked = _linked(player, player.link, searched, around, budget, effort, given, engine, told)
        found += [point for point in linked if point.peak <= budget]
    return min(found, key=lambda point: point.seconds, default=None)


def _searched(
    player: Player,
    below: Sequence[Point],
    above: Sequence[Point],
    budget: int,
    found_by: Callable[[Player, Sequence[Sequence[int]], int], Polished],
) -> Point:
    """What a search finds within a budget from the points below and above it, without transfers."""
    problem, positions = player.opener.problem, player.opener.positions
    starts = [[positions[op] for op in point.executions] for point in (*below, *above)]
    found = found_by(player, starts, budget)
    return player.at_cost(
        replace(
            below[0] if below else above[-1],
            polished=True,
            in_place=True,
            ceiling=found.ceiling,
            actions=runs(problem, [problem.op_at(place) for place in found.sequence]),
        )
    )


def _patiently(
    player: Player,
    starts: Sequence[Sequence[int]],
    budget: int,
    sequences: Sequence[Sequence[int]],
    least: float,
    told: Tally,
) -> Polished:
    problem = player.opener.problem
    # The search leaves out views that are made once in each plan: of parameters and of gradients.
    uncounted = seconds_of_views(player.graph, player.costs) - player.views.once(problem)
    return player.polisher.refine(starts, budget, least - uncounted, sequences, told)


def _briefly(player: Player, starts: Sequence[Sequence[int]], budget: int) -> Polished:
    polisher = player.polisher
    return polisher.beside([polisher.polished(start, budget, None) for start in starts], budget)


def _linked(
    player: Player,
    link: HostLink,
    searched: Point,
    around: Sequence[Point],
    budget: int,
    effort: Effort,
    given: Sequence[Point],
    engine: Engine,
    told: Tally,
) -> list[Point]:
    """What is found with transfers within a budget, from the best without and the points around,
    and from those with transfers that are `given`."""
    problem, early = player.opener.problem.plain, frees_early(player.costs)
    views = views_of(player.graph, player.costs, problem)
    linker = Linker(problem, link, leaving(player.graph, problem), early, engine, views)
    starts = [player.opener.plain_positions(point.executions) for point in (searched, *around)]
    placed = linker.plan(budget, starts, effort, [point.actions for point in given], told)
    if placed is None:
        return []
    actions = linker.placer.actions(placed)
    point = linked_point(searched, actions, placed.ceiling, PlanCost(placed.seconds, budget))
    return [player.at_cost(point)]


def _compare(what: str, said: PlanCost, found: Replay) -> None:
    if (said.peak, said.time) != (found.peak, found.seconds):
        raise ArtifactError(
            f"the frontier says that {what} takes {said.peak:,} bytes and {said.time:g} s, which "
            f"replays to {found.peak:,} bytes and {found.seconds:g} s: it was made with other "
            f"costs, or changed since"
        )
