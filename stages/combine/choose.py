"""Chooses the point of a frontier for a budget, and says what the choice is worth."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from tightfit.schemas.budget import NO_BUDGET
from tightfit.schemas.costs import Costs
from tightfit.schemas.engines import HIGHS, Engine
from tightfit.schemas.frontier import ROUNDING, Frontier, Point
from tightfit.schemas.graph import Graph
from tightfit.schemas.link import HostLink
from tightfit.schemas.plan import Plan, PlanCost, Verdict, gap_of
from tightfit.schemas.problem import Problem
from tightfit.schemas.schedule import Step
from tightfit.schemas.telling import Report, Tally
from tightfit.stages.combine.bounds import (
    Proven,
    least_peak,
    least_seconds,
    most_needed,
    proven_seconds,
    seconds_of_views,
)
from tightfit.stages.combine.holding import holding, needing
from tightfit.stages.combine.in_all import InAll, margin
from tightfit.stages.combine.moment.deciding import WANTED
from tightfit.stages.combine.moment.limits import Limits
from tightfit.stages.combine.refine import Player, refined, searches
from tightfit.stages.combine.schedule.leaving import leaving
from tightfit.stages.combine.sources import of_costs, of_link
from tightfit.stages.combine.transfers.bound import least_seconds_linked
from tightfit.stages.combine.transfers.deciding import LinkedMoments
from tightfit.stages.replay.referee import Replay

BOUND = 1
"""Searches that a bound is counted as."""


def choose(
    graph: Graph,
    costs: Costs,
    problem: Problem,
    frontier: Frontier,
    budget: str,
    search: bool = True,
    total: int | None = None,
    engine: Engine = HIGHS,
    report: Report | None = None,
) -> tuple[Plan, Point | None, list[Step]]:
    """The plan for a budget as written, the point that it is, and its schedule with times and
    memory filled in; `total` are the bytes of the budget where these are another step's.

    The point is the frontier's or, with `search`, a faster one (`refine`), and the bound that of
    the programs of an `engine`; "none" takes the frontier's fastest. On CUDA it may be a slower
    one, whose reserved bytes are within the budget. When nothing fits, the verdict is `infeasible`,
    the point None and the schedule empty. `report` is told of each search that is done. Raises
    ConfigError when the budget is no size, or the costs are of settings of CUDA's allocator that
    are not followed, ArtifactError when the frontier does not say what its plans replay to.
    """
    in_all = InAll.of_step(graph, costs, problem, frontier.link)
    elsewhere = total is not None
    if total is None and budget != NO_BUDGET:
        total = in_all.budget(budget, frontier)
    asked = _Asked(budget, total, in_all, frontier, elsewhere)
    in_all.player.check_keep_all(asked.keep_all)
    in_all.player.played(frontier.points[-1])
    rounds = 1 if asked.own is None or frontier.within(asked.own) else 2
    most = rounds * (BOUND + searches(frontier.link)) + in_all.tries(frontier)
    told = Tally(report, most)
    first, limit = _within(in_all.player, frontier, asked.own, search, engine, told)
    point = first
    if total is not None and in_all.reserves:
        proven = limit.proven
        starts, least = ([], math.inf) if proven is None else (proven.sequences, proven.seconds)
        if search:
            point = replace(in_all, engine=engine, told=told).fitted(
                frontier, first, total, starts, least
            )
        else:
            point = in_all.fitting(frontier, total)
    if point is None:
        return asked.refused(), None, []
    played = in_all.player.played(point)
    return asked.chosen(point, played, limit, point is first), point, played.steps


@dataclass(frozen=True)
class _Asked:
    """A budget as written, for the plans of a frontier; `total` are its bytes, None for none. A
    percentage is of another step where it is counted `elsewhere`."""

    budget: str
    total: int | None
    in_all: InAll
    frontier: Frontier
    elsewhere: bool

    @property
    def own(self) -> int | None:
        """The bytes of the step alone."""
        return None if self.total is None else self.total - self.in_all.fixed.there_before

    @property
    def keep_all(self) -> PlanCost:
        """The step that keeps everything."""
        return PlanCost(self.frontier.keep_all_seconds, self.frontier.keep_all_peak)

    def refused(self) -> Plan:
        """What is known where nothing fits."""
        in_all, frontier = self.in_all, self.frontier
        fixed, player = in_all.fixed, in_all.player
        least = in_all.least(frontier)
        smallest = in_all.of(least)
        last = player.played(least)
        memory = in_all.memory(last.steps, frontier, smallest - 1)
        parts = holding(player.graph, last, fixed)
        room = in_all.keep_all(frontier) - fixed.floor
        share = "" if self.elsewhere else _share(smallest - fixed.floor, room)
        measured = _measured(self.budget, smallest, share)
        sentence = (
            f"infeasible: {_asked(self.budget, self.total or 0)}, the smallest budget known to "
            f"work for {player.graph.model} with {frontier.strategy} is {measured}; "
            f"at the peak of the step these are {parts}{margin(memory)}"
            f"{self._floor(room)}{of_costs(player.graph, player.costs)}{_clock(frontier)}"
        )
        return Plan(
            frontier.strategy, self.budget, self.total, self.own, "infeasible", sentence,
            smallest_budget=smallest, keep_all=self.keep_all, fixed=fixed, solver="none",
            gpu=memory,
        )  # fmt: skip

    def _floor(self, room: int) -> str:
        """What no plan takes less than, as a share of `room` too where the budget is of this step,
        and what asks for that."""
        player, fixed = self.in_all.player, self.in_all.fixed
        own, position = most_needed(player.opener.problem)
        size = fixed.there_before + own
        beyond = max(size - fixed.floor, 0)
        known = 0 <= beyond <= room and room and not self.elsewhere
        share = f"{100 * beyond // room}%" if known else ""
        what = needing(player.graph, player.opener.problem, position)
        return f"; no plan takes less than {_measured(self.budget, size, share)}, {what}"

    def chosen(self, point: Point, played: Replay, limit: _Limit, is_first: bool) -> Plan:
        """The plan that a point is; the frontier's or its refinement where it `is_first`, else one
        with fewer bytes in all."""
        in_all, frontier = self.in_all, self.frontier
        memory = in_all.memory(played.steps, frontier, self.total)
        bound, clock = limit.below(played.seconds)
        gap = gap_of(played.seconds, bound)
        verdict: Verdict = "optimal" if gap <= ROUNDING else "feasible"
        words = self._words(verdict, point, gap)
        said = (
            f"{words}{_sent(played, frontier)}{of_costs(in_all.player.graph, in_all.player.costs)}"
        )
        return Plan(
            strategy=frontier.strategy,
            budget=self.budget,
            budget_total=self.total,
            budget_bytes=self.own,
            verdict=verdict,
            sentence=f"{said}{_clock(frontier)}{margin(memory)}{clock}",
            time=played.seconds,
            peak=played.peak,
            lower_bound=bound,
            gap=gap,
            optimal_in=_optimal_in(verdict, point, frontier, is_first),
            smallest_budget=min(in_all.of(frontier.points[-1]), in_all.of(point)),
            before_polish=PlanCost(point.before_seconds, point.before_peak),
            keep_all=self.keep_all,
            fixed=in_all.fixed,
            recomputed=played.repeated,
            recomputed_time=played.repeated_seconds,
            solver="local search" if point.polished else "none",
            gpu=memory,
            transfers=played.transfers,
        )

    def _words(self, verdict: Verdict, point: Point, gap: float) -> str:
        """A plan in words; its bytes are those of a budget, with what is there before the step."""
        there_before = self.in_all.fixed.there_before
        slower = point.seconds / self.frontier.keep_all_seconds
        most = math.ceil(gap * 1000) / 1000
        worth = "" if verdict == "optimal" else f", no plan is more than {most:.1%} faster"
        return (
            f"{verdict}: {there_before + point.peak:,} bytes in all where keeping everything takes "
            f"{there_before + self.frontier.keep_all_peak:,}, {slower:.3f} times its predicted time"
            f"{worth}"
        )


@dataclass(frozen=True)
class _Limit:
    """What no plan within a budget goes below: in short, and closer where that was asked for."""

    simple: float
    proven: Proven | None = None

    def below(self, seconds: float) -> tuple[float, str]:
        """The limit of a plan that takes so many seconds, and what a verdict says of it.

        The simple one stands where the closer one is above the plan, which is then wrong: no plan
        is called optimal for it, and the verdict says so."""
        if self.proven is None:
            return min(self.simple, seconds), ""
        if self.proven.seconds > seconds * (1 + ROUNDING):
            said = "; the plan is below a closer bound, which is left out of the gap"
            return min(self.simple, seconds), said
        clock = "; the clock, not the work, ended the search for a bound"
        return min(self.proven.seconds, seconds), clock if self.proven.clock else ""


def _within(
    player: Player,
    frontier: Frontier,
    budget: int | None,
    search: bool,
    engine: Engine,
    told: Tally,
) -> tuple[Point | None, _Limit]:
    """The point for a budget, the frontier's fastest without one, with what limits it: the simple
    limit where a point meets it, which is not refined then, and where nothing is to be searched."""
    graph, costs, problem = player.graph, player.costs, player.opener.problem
    fastest = frontier.points[0]
    asked = fastest.peak if budget is None else budget
    point = fastest if budget is None else frontier.within(budget)
    link = frontier.link if frontier.link is not None and frontier.link.bandwidth > 0 else None
    if link is None:
        simple = least_seconds(graph, costs, problem, asked)
    else:
        simple = least_seconds_linked(problem, asked, link) + seconds_of_views(graph, costs)
    met = point is not None and simple >= point.seconds * (1 - ROUNDING)
    if met or not search or asked < least_peak(problem):
        return point, _Limit(simple)
    known = math.inf if point is None else point.seconds
    prove = partial(proven_seconds, graph, costs, problem, asked, engine)
    proven = prove(known)
    told()
    if budget is not None:
        look = partial(refined, player, frontier, budget, engine=engine, told=told)
        point = look(proven.sequences, least=proven.seconds)
        if point is not None and known == math.inf and _far(point, proven):
            point, proven = _again(point, proven, prove, look)
            told()
    if link is None:
        return point, _Limit(simple, proven)
    # The programs with a link know one form of a further run.
    closer = None if problem.alternatives else _linked(player, link, asked, engine)
    return point, _Limit(simple, closer)


def _far(point: Point, proven: Proven) -> bool:
    """Whether a bound that no plan was known for is so far below one that it would be widened."""
    return gap_of(point.seconds, proven.seconds) > WANTED


def _again(
    point: Point,
    proven: Proven,
    prove: Callable[[float], Proven],
    look: Callable[..., Point | None],
) -> tuple[Point, Proven]:
    """A point and its bound once more, now that a plan is known: with the better bound, and with
    what the search finds from its further starts."""
    closer = prove(point.seconds)
    starts = [each for each in closer.sequences if each not in proven.sequences]
    best = max(proven, closer, key=lambda each: each.seconds)
    further = look(starts, least=best.seconds) if starts else None
    return min(filter(None, (point, further)), key=lambda each: each.seconds), best


def _linked(player: Player, link: HostLink, budget: int, engine: Engine) -> Proven:
    """What no plan with transfers goes below."""
    problem = player.opener.problem
    given = leaving(player.graph, problem)
    bound = LinkedMoments(problem, link, given, Limits(engine=engine)).bound(budget)
    return Proven(bound.seconds + seconds_of_views(player.graph, player.costs), [], bound.clock)


def _optimal_in(verdict: Verdict, point: Point, frontier: Frontier, asked: bool) -> str:
    """The class that a plan is optimal in: the strategy's only where the plan is its own, and the
    one for the bytes that were `asked`."""
    if verdict == "optimal":
        return "all plans of this graph"
    return frontier.optimal_in if point.given and asked else ""


def _share(part: int, whole: int) -> str:
    """A budget as a percentage, rounded up; "" where it is none."""
    return f"{-(-100 * part // whole) or 1}%" if 0 <= part <= whole and whole else ""


def _asked(budget: str, total: int) -> str:
    """What was asked for in bytes, with the budget as written where that says it otherwise."""
    size = f"{total:,} bytes" if total != 1 else "1 byte"
    return f"the budget is {size}" if budget.rstrip("B").isdigit() else f"{budget} is {size}"


def _measured(budget: str, size: int, share: str) -> str:
    """A budget in bytes and as a percentage, first in the measure that was asked in."""
    if not share:
        return f"{size:,} bytes"
    first, second = (f"{size:,} bytes", share)[:: -1 if budget.endswith("%") else 1]
    return f"{first} ({second})"


def _sent(played: Replay, frontier: Frontier) -> str:
    """What a verdict says of transfers."""
    moved, link = played.transfers, frontier.link
    if moved is None or link is None:
        return ""
    waited, busy = (
        each / played.seconds if played.seconds else 0.0 for each in (moved.waited, played.overhead)
    )
    taken = f", and transfers take {busy:.1%} of it from them" if busy else ""
    return (
        f"; {moved.left:,} bytes wait in {link.other}, and computations wait for the link for "
        f"{waited:.1%} of the time{taken}{of_link(link)}"
    )


def _clock(frontier: Frontier) -> str:
    """What a verdict says where the clock decided: another run may come to another plan."""
    if not frontier.clock:
        return ""
    return f"; the clock, not the work, ended {frontier.clock} of the blocks' solves"
