"""What no plan of a step can go below: a peak, and a time for each budget."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tightfit.schemas.costs import Costs
from tightfit.schemas.graph.planning_graph import PlanningGraph
from tightfit.schemas.graph.training_graph import NO_VALUE, Graph
from tightfit.stages.combine.bounds.cuts import CutBoundSolver, TimeBound
from tightfit.stages.combine.local_search.views import build_view_times
from tightfit.stages.combine.milp import SolverLimits
from tightfit.util.solver_engines import HIGHS_ENGINE, SolverEngine


def peak_lower_bound(problem: PlanningGraph) -> int:
    """Bytes that every plan needs at some moment."""
    return locate_peak_lower_bound(problem)[0]


def locate_peak_lower_bound(problem: PlanningGraph) -> tuple[int, int]:
    """Bytes that every plan needs at some moment, and the position of the node that runs then, NONE
    for the end of the step.

    The largest over all nodes of what is there while it runs (its inputs, its own peak, and, from
    the loss on, what the caller holds), and what is there when the step ends.
    """
    held = {i for i, storage in enumerate(problem.storages) if storage.held}
    largest, where = sum(s.bytes for s in problem.storages if s.stays), NO_VALUE
    for position, node in enumerate(problem.nodes):
        there = set(node.inputs)
        if position > problem.loss:
            there |= held
        bytes_there = sum(problem.storages[storage].bytes for storage in there)
        if bytes_there + node.least_peak > largest:
            largest, where = bytes_there + node.least_peak, position
    return largest, where


def time_lower_bound(graph: Graph, costs: Costs, problem: PlanningGraph, budget: int) -> float:
    """Seconds that every plan of a step within the budget takes at least: those of its nodes, and
    of the views that they read, once each."""
    return node_time_lower_bound(problem, budget) + total_view_seconds(graph, costs)


def prove_time_lower_bound(
    graph: Graph,
    costs: Costs,
    problem: PlanningGraph,
    budget: int,
    engine: SolverEngine = HIGHS_ENGINE,
    known: float = math.inf,
) -> TimeBound:
    """As `least_seconds`, closer and with more work: with what `moment` decides by an engine, not
    much closer than what a plan that is `known` asks for, by its seconds."""
    views, viewed = build_view_times(graph, costs, problem), total_view_seconds(graph, costs)
    moments = CutBoundSolver(problem, SolverLimits(engine=engine), views=views)
    decided = moments.solve_bound(budget, known=known - viewed)
    least = max(node_time_lower_bound(problem, budget), decided.seconds)
    return TimeBound(least + viewed, decided.sequences, decided.clock)


def node_time_lower_bound(problem: PlanningGraph, budget: int) -> float:
    """Seconds that every plan within the budget takes at least, views left out.

    Every node runs once. What the backward reads of the forward is either there while the loss
    runs, within the budget, or made again afterwards; the cheapest bytes to make again, taken
    fractionally, bound the recomputation from below. Only makers that the outputs depend on count,
    since others may run for the first time after the loss.
    """
    moment = cut_at_loss(problem, budget)
    return moment.once + moment.recompute_seconds(moment.missing)


@dataclass(frozen=True)
class LossCut:
    """What is known of every plan within a budget when the loss runs.

    All nodes take `once` seconds, those that have to run `before` the loss has ended and `after` it
    as many of these. Of the bytes that the backward reads then, some are `missing`; `groups` are
    all of them by maker, bytes with the seconds of making them again, the cheapest bytes first.
    """

    once: float
    before: float
    after: float
    missing: int
    groups: list[tuple[int, float]]

    def recompute_seconds(self, size: int) -> float:
        """The least seconds that make so many bytes again, parts of groups allowed."""
        return _fractional_min_cost(self.groups, size)


def cut_at_loss(problem: PlanningGraph, budget: int) -> LossCut:
    """The step when the loss runs, with a budget in bytes."""
    loss = problem.loss
    held = {i for i, s in enumerate(problem.storages) if s.held and s.producer <= loss}
    room = budget - sum(problem.storages[storage].bytes for storage in held)
    read = {
        storage
        for node in problem.nodes[loss + 1 :]
        for storage in node.inputs
        if 0 <= problem.storages[storage].producer < loss
    } - held
    needed = {loss} | problem.ancestors(problem.nodes[loss].inputs)
    groups: dict[int, list[int]] = {}
    for storage in read:
        maker = problem.storages[storage].producer
        if maker in needed:
            groups.setdefault(maker, []).append(storage)
    items = [
        item for maker, made in groups.items() for item in _recompute_costs(problem, maker, made)
    ]
    return LossCut(
        once=sum(node.least_seconds for node in problem.nodes),
        before=sum(problem.nodes[position].least_seconds for position in needed),
        after=sum(node.least_seconds for node in problem.nodes if node.phase == "backward"),
        missing=sum(size for size, _ in items) - max(room, 0),
        groups=sorted(items, key=lambda pair: pair[1] / max(pair[0], 1)),
    )


def _recompute_costs(
    problem: PlanningGraph, maker: int, storages: Sequence[int]
) -> list[tuple[int, float]]:
    """Bytes that a node made with what it takes at least to make them again: all together or, where
    there are several ways to make some, each with its share of the best of them."""
    size = {storage: problem.storages[storage].bytes for storage in storages}
    others = [other.form for other in problem.alternatives if other.node == maker]
    own, total = problem.nodes[maker].form(True).least_seconds, sum(size.values())
    if not others:
        return [(total, own)]
    rates = dict.fromkeys(storages, own / max(total, 1))
    for form in others:
        made = [storage for storage in storages if storage in form.outputs]
        whole = sum(size[storage] for storage in made)
        for storage in made:
            rates[storage] = min(rates[storage], form.least_seconds / max(whole, 1))
    return [(size[storage], rates[storage] * size[storage]) for storage in storages]


def total_view_seconds(graph: Graph, costs: Costs) -> float:
    """Seconds of the views that every plan makes, once each: of what ops read when they first run,
    of what the caller is given, and of what those are views of."""
    views = [op for op in graph.ops if graph.is_view(op)]
    maker = {value: op for op in views for value in op.outputs if value != NO_VALUE}
    first_run = [op for op in graph.ops if not graph.is_view(op)]
    pending = [value for op in first_run for value in op.inputs]
    pending += [output.value for output in graph.outputs]
    pending += [gradient.gradient for gradient in graph.gradients]
    needed: set[int] = set()
    while pending:
        op = maker.get(pending.pop())
        if op is not None and op.id not in needed:
            needed.add(op.id)
            pending += op.inputs
    return sum(costs.of(graph, op).seconds for op in views if op.id in needed)


def _fractional_min_cost(items: Sequence[tuple[int, float]], size: int) -> float:
    """The least cost of items (size, cost), in the order of what a byte costs, that together have
    the size, parts of items allowed."""
    total = 0.0
    for item, cost in items:
        if size <= 0:
            break
        part = min(1.0, size / item) if item else 0.0
        total += cost * part
        size -= item
    return total
