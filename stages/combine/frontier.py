"""The frontier of a strategy: its candidates after local search over a grid of budgets,
simulated."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tightfit.schemas.actions import (
    Action,
    Compute,
    ComputeLoss,
    Free,
    Offload,
    OpAction,
    Prefetch,
    WriteBuffer,
)
from tightfit.schemas.costs import Costs
from tightfit.schemas.frontier import Frontier, ParetoPoint, pareto_points
from tightfit.schemas.graph.planning_graph import PlanningGraph
from tightfit.schemas.graph.training_graph import NO_VALUE, Graph
from tightfit.schemas.link import HostLink
from tightfit.schemas.plan import PlanCost
from tightfit.stages.combine.activation_offload.placement import offloadable_values
from tightfit.stages.combine.activation_offload.search import (
    TRANSFER_BUDGET_INTERVAL,
    TransferSearch,
    frees_offloads_early,
    neighboring_points,
    transfer_point,
)
from tightfit.stages.combine.bounds.cuts import MultiBudgetCutBoundSolver
from tightfit.stages.combine.bounds.lower_bounds import peak_lower_bound, time_lower_bound
from tightfit.stages.combine.local_search.search import AnnealedSequence, LocalSearch
from tightfit.stages.combine.local_search.views import build_view_times
from tightfit.stages.combine.lowering.blocks import run_actions
from tightfit.stages.combine.lowering.schedule import ScheduleLowering
from tightfit.stages.combine.milp import SolverLimits
from tightfit.stages.combine.strategies.strategy import Candidate, StrategyInfo
from tightfit.stages.simulate.liveness import simulate_executions
from tightfit.stages.simulate.simulate import simulate
from tightfit.util.budget import FRONTIER_BUDGETS
from tightfit.util.errors import ArtifactError, ScheduleError
from tightfit.util.progress import ProgressCallback, TwoPhaseProgress
from tightfit.util.solver_engines import HIGHS_ENGINE, SolverEngine


@dataclass(frozen=True)
class FrontierProblem:
    """The step that plans are made of: its graph with the digest of that, its costs, the graph
    condensed, the `link` that plans may take, None for none, and the engine of the programs that
    starts come from."""

    graph: Graph
    digest: str
    costs: Costs
    problem: PlanningGraph
    link: HostLink | None = None
    engine: SolverEngine = HIGHS_ENGINE


def build_frontier(
    subject: FrontierProblem,
    about: StrategyInfo,
    candidates: Sequence[Candidate],
    keep_all: Candidate,
    workers: int = 1,
    report: ProgressCallback | None = None,
    budgets: int = FRONTIER_BUDGETS,
) -> Frontier:
    """The plans of a strategy, each simulated at true sizes, by falling peak.

    `candidates` are what the strategy made of the step and `keep_all` is the captured order; local
    search starts from both and from what `moment` decides. The candidates are points as they were
    given, and with ops in place where that takes no more memory or time, beside what local search
    made. Plans are optimal in the strategy's class where all of its candidates are. A baseline
    keeps its candidates as they are. Local search has a grid of at most so many `budgets`. The
    result does not depend on `workers`, the number of threads; `report` is told of it, as
    `LocalSearch.sweep` says, and of the search with a link that follows. Raises ScheduleError when
    a candidate has an action that is added to it, or the simulator refuses a plan.
    """
    if about.baseline and not candidates:
        raise ScheduleError(f"{about.name} makes no plan")
    graph, costs, problem = subject.graph, subject.costs, subject.problem
    for candidate in candidates:
        _check_candidate(candidate, problem, about.name)
    played = _CandidateSimulator(subject)
    everything = played.given(keep_all)
    linked_report = None
    if subject.link is not None and report is not None:
        parts = TwoPhaseProgress(report, 1 / TRANSFER_BUDGET_INTERVAL)
        report, linked_report = parts.first, parts.second
    plans = (
        [_CandidatePlan(candidate, candidate.actions) for candidate in candidates]
        if about.baseline
        else _generate_plans(subject, candidates, keep_all, workers, report, budgets)
    )
    points = [played.point(plan) for plan in plans]
    if subject.link is not None and not about.baseline:
        points += _transfer_points(played, pareto_points(points), workers, linked_report)
    best = pareto_points(points)
    return Frontier(
        strategy=about.name,
        model=graph.model,
        graph=subject.digest,
        keep_all_peak=everything.peak,
        keep_all_seconds=everything.time,
        lower_bound_peak=peak_lower_bound(problem),
        lower_bound_seconds=time_lower_bound(graph, costs, problem, everything.peak),
        optimal_in=about.optimal_in if _is_optimal(candidates) else "",
        points=best,
        link=subject.link,
        dominated=_dominated_points(points, best),
    )


def _is_optimal(candidates: Sequence[Candidate]) -> bool:
    """Whether what a strategy gave is optimal in its class, whatever the budget."""
    return bool(candidates) and all(candidate.optimal for candidate in candidates)


def _transfer_points(
    played: _CandidateSimulator,
    points: Sequence[ParetoPoint],
    workers: int,
    report: ProgressCallback | None,
) -> Iterator[ParetoPoint]:
    """Plans that send storages to an offload target, from those of a frontier, for a grid of
    budgets below what these take."""
    given = pareto_points(point for point in points if point.transfers)
    plain = pareto_points(point for point in points if not point.transfers)
    subject = played.subject
    if subject.link is None or not plain:
        return
    problem, early = subject.problem.plain, frees_offloads_early(subject.costs)
    values = offloadable_values(subject.graph, problem)
    views = build_view_times(subject.graph, subject.costs, problem)
    linker = TransferSearch(problem, subject.link, values, early, subject.engine, views)

    def source(budget: int) -> ParetoPoint:
        return next((point for point in plain if point.peak <= budget), plain[-1])

    def start(budget: int) -> list[int]:
        return played.opener.plain_positions(source(budget).executions)

    highest = max(point.peak for point in plain)

    def linked(budget: int) -> list[Sequence[Action]]:
        return [point.actions for point in neighboring_points(given, budget)]

    for placed in linker.sweep(highest, peak_lower_bound(problem), start, workers, linked, report):
        actions = linker.placer.actions(placed)
        point = played.linked(source(placed.ceiling), actions, placed.ceiling)
        if point.transfers:
            yield point


def _dominated_points(
    points: Sequence[ParetoPoint], best: Sequence[ParetoPoint]
) -> list[ParetoPoint]:
    """The best without transfers among points, but for those that are best among all."""
    if not any(point.transfers for point in best):
        return []
    kept = {id(point) for point in best}
    plain = pareto_points(point for point in points if not point.transfers)
    return [point for point in plain if id(point) not in kept]


def _check_candidate(candidate: Candidate, problem: PlanningGraph, name: str) -> None:
    """Raises ScheduleError where a candidate says more than which ops run, in which order, and
    what is sent, leaves and comes back."""
    sent: set[int] = set()
    for action in candidate.actions:
        if isinstance(action, Offload):
            sent.add(action.value)
        moves = isinstance(action, Offload | Prefetch | Free) and action.value in sent
        if not (moves or isinstance(action, OpAction)):
            raise ScheduleError(
                f"a plan of {name} has a {type(action).__name__}: a candidate runs ops, sends "
                "values, frees them and brings them back, all else is added to it"
            )
    if not {node.op for node in problem.nodes}.issuperset(candidate.executions):
        raise ArtifactError("the blocks run ops that are none of the graph's: make them of it")
    loss = problem.nodes[problem.loss].op
    for action in candidate.actions:
        if isinstance(action, ComputeLoss):
            plain = action.op == loss
        elif not isinstance(action, Compute | WriteBuffer):
            continue
        else:
            plain = action.op != loss and action.in_place == NO_VALUE
        if not plain:
            raise ScheduleError(
                f"a plan of {name} has {action}: the loss alone is run as one, and what an op "
                "overwrites is decided for it"
            )


@dataclass(frozen=True)
class _CandidatePlan:
    """The actions of a plan and which ops run in place, as in `ParetoPoint`, with the candidate
    that it comes from."""

    candidate: Candidate
    actions: Sequence[Action]
    local_search: bool = False
    in_place: bool = False
    ceiling: int = 0


class _CandidateSimulator:
    """Simulates plans of one step."""

    def __init__(self, subject: FrontierProblem) -> None:
        self.subject = subject
        self.opener = ScheduleLowering(subject.graph, subject.problem)
        self._given: dict[tuple[Action, ...], PlanCost] = {}

    def cost(self, actions: Sequence[Action], in_place: bool, ceiling: int) -> PlanCost:
        """What the simulator says of a plan."""
        steps = self.opener.of_actions(actions, in_place, ceiling)
        subject = self.subject
        played = simulate(subject.graph, subject.costs, steps, link=subject.link)
        return PlanCost(played.seconds, played.peak)

    def given(self, candidate: Candidate) -> PlanCost:
        """A candidate as its strategy gave it."""
        key = tuple(candidate.actions)
        if key not in self._given:
            self._given[key] = self.cost(candidate.actions, False, 0)
        return self._given[key]

    def linked(self, source: ParetoPoint, actions: Sequence[Action], ceiling: int) -> ParetoPoint:
        """The point of a plan with transfers that was found from another point."""
        cost = self.cost(actions, True, ceiling)
        return transfer_point(source, actions, ceiling, cost)

    def point(self, plan: _CandidatePlan) -> ParetoPoint:
        """The point of a frontier that a plan is."""
        candidate = plan.candidate
        before = self.given(candidate)
        as_given = not (plan.local_search or plan.in_place)
        after = before if as_given else self.cost(plan.actions, plan.in_place, plan.ceiling)
        return ParetoPoint(
            peak=after.peak,
            seconds=after.time,
            strategy_peak=before.peak,
            strategy_seconds=before.time,
            local_search=plan.local_search,
            in_place=plan.in_place,
            in_place_threshold=plan.ceiling,
            actions=list(plan.actions),
            sequence=list(candidate.sequence),
            origin=candidate.origin + (", local search" if plan.local_search else ""),
        )


def _generate_plans(
    subject: FrontierProblem,
    candidates: Sequence[Candidate],
    keep_all: Candidate,
    workers: int,
    report: ProgressCallback | None,
    budgets: int,
) -> Iterator[_CandidatePlan]:
    """The candidates and the captured order, as they are and with ops in place, where that costs
    neither time nor memory and wherever it can be; then what local search makes of them."""
    problem, nodes = subject.problem, subject.problem.nodes
    position = {node.op: index for index, node in enumerate(nodes)}
    # Where no op takes longer in place, all run so whatever the ceiling.
    slower = any(reuse.seconds > node.seconds for node in nodes for reuse in node.reuses)
    starts = [[position[op] for op in candidate.executions] for candidate in candidates]
    for source in (*candidates, keep_all):
        yield _CandidatePlan(source, source.actions)
        sequence = [position[op] for op in source.executions]
        peak = max(run.peak for run in simulate_executions(problem, sequence, in_place=False))
        for ceiling in (source.ceiling or peak, 0)[: 2 if slower else 1]:
            yield _CandidatePlan(source, source.actions, in_place=True, ceiling=ceiling)
    unique: dict[tuple[int, ...], AnnealedSequence] = {}
    drafts = MultiBudgetCutBoundSolver(problem, SolverLimits(engine=subject.engine)).drafts
    local_search = LocalSearch(problem, build_view_times(subject.graph, subject.costs, problem))
    least = peak_lower_bound(problem)
    for annealed in local_search.sweep(starts, least, workers, report, drafts, budgets):
        unique.setdefault((annealed.peak, *annealed.sequence), annealed)
    for annealed in unique.values():
        source = keep_all if annealed.start is None else candidates[annealed.start]
        ops = [problem.op_at(index) for index in annealed.sequence]
        yield _CandidatePlan(
            source,
            run_actions(problem, ops),
            local_search=True,
            in_place=True,
            ceiling=annealed.ceiling,
        )
