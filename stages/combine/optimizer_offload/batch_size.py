"""The batch size with which a whole step trains the most samples a second (Z 4.5.3).

Activations and the time of computations grow with the batch, parameters, their gradients, updates
and transfers of these do not. A larger batch spreads what does not grow over more samples, a
smaller one leaves more memory to it. As in O-ILP with batch size selection, the batch is a
continuous number at first: the step is planned as if it had `scale` times the samples of the traced
one. The best scale is then rounded to whole batches, of which the better one is taken.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from tightfit.schemas.costs import RECOMPUTE_VARIANT, Costs, OpCost, op_cost_key
from tightfit.schemas.graph.loss_room import with_loss_room
from tightfit.schemas.graph.training_graph import NO_VALUE, Graph
from tightfit.schemas.link import HostLink
from tightfit.stages.combine.optimizer_offload.command import plan_step
from tightfit.stages.combine.optimizer_offload.problem import OffloadProblem
from tightfit.stages.simulate.planning_graph import build_planning_graph
from tightfit.util.errors import ConfigError

MAX_SCALE = 16.0
"""How many times larger or smaller the batch may be."""
SCALE_TOLERANCE = 1.05
"""The search ends when the best scale is known up to this factor."""
_GOLDEN = (math.sqrt(5) - 1) / 2


@dataclass(frozen=True)
class BatchSizeChoice:
    """The best `scale`, a continuous number, the batch of the traced step, the `batch` that is the
    best of those next to it, and the samples a second of both as they are predicted."""

    scale: float
    traced: int
    batch: int
    traced_rate: float
    batch_rate: float


def scale_batch(task: OffloadProblem, scale: float) -> OffloadProblem:
    """The problem of a step with `scale` times the samples: time and bytes that grow with the batch
    are multiplied, those of parameters, of their gradients and of updates are as they were."""
    graph = task.graph
    fixed = _fixed_storages(graph)
    sizes = [
        size if storage in fixed else math.ceil(size * scale)
        for storage, size in enumerate(graph.storages)
    ]
    scaled = replace(graph, storages=sizes)
    if graph.loss_room:
        scaled = with_loss_room(scaled, math.ceil(graph.loss_room * scale))
    costs = Costs(_scale_costs(graph, scaled, task.costs, scale), task.costs.device)
    return replace(task, graph=scaled, costs=costs, problem=build_planning_graph(scaled, costs))


def _fixed_storages(graph: Graph) -> set[int]:
    """The storages whose bytes do not depend on the batch."""
    kinds = ("parameter", "buffer", "constant")
    owned = {value.storage for value in graph.values if value.kind in kinds}
    parameters = {value.id for value in graph.values if value.kind == "parameter"}
    gradients = {
        graph.values[gradient.gradient].storage
        for gradient in graph.gradients
        if gradient.value in parameters
    }
    return owned | gradients


def _scale_costs(graph: Graph, scaled: Graph, costs: Costs, scale: float) -> list[OpCost]:
    """The costs of a scaled graph. What an op makes takes the bytes of its storages, and what it
    takes beside them grows with the batch."""
    rows = dict(costs.rows)
    for op in (*graph.ops, *graph.alternatives):
        made = {graph.values[value].storage for value in op.outputs if value != NO_VALUE}
        made &= set(graph.made_by(op))
        before, after = (sum(each.storages[s] for s in made) for each in (graph, scaled))
        for form in (NO_VALUE, RECOMPUTE_VARIANT, *op.in_place):
            row = costs.rows.get(op_cost_key(graph, op, form))
            if row is None or rows[row.key] is not row:
                continue  # it has no such form, or its costs are scaled already
            kept, now = (before, after) if form == NO_VALUE else (0, 0)
            peak, net = (
                math.ceil(max(size - kept, 0) * scale) + now for size in (row.peak, row.net)
            )
            rows[row.key] = replace(row, seconds=row.seconds * scale, peak=peak, net=net)
    return list(rows.values())


def choose_batch_size(
    task: OffloadProblem,
    beyond: HostLink | None,
    budget: str,
    batch: int,
    told: Callable[[float, float], None] = lambda scale, rate: None,
) -> BatchSizeChoice:
    """The batch size with the most samples a second.

    Args:
        task: The step as it was traced, with its machine.
        beyond: The link to a second offload tier, None if there is none.
        budget: The bytes of the device for everything, as written.
        batch: The samples of the traced step.
        told: Is given each scale that was planned with its samples a second, 0 where none fits.

    Raises:
        ConfigError: Nothing fits the budget, however small the batch is.
    """
    known: dict[float, float] = {}

    def rate(scale: float) -> float:
        if scale not in known:
            try:
                _, found = plan_step(scale_batch(task, scale), beyond, budget)
                known[scale] = scale * batch / found.seconds
            except ConfigError:
                known[scale] = 0.0
            told(scale, known[scale])
        return known[scale]

    best = _maximize_rate(rate, max(1 / MAX_SCALE, 1 / batch), MAX_SCALE)
    if not rate(best):
        raise ConfigError(f"nothing fits {budget}, with a batch of {batch} or any other")
    near = {max(math.floor(best * batch), 1), math.ceil(best * batch)}
    chosen = max(sorted(near), key=lambda each: rate(each / batch))
    return BatchSizeChoice(best, batch, chosen, rate(1.0), rate(chosen / batch))


def _maximize_rate(rate: Callable[[float], float], low: float, high: float) -> float:
    """Where a rate that rises and then falls is the greatest, by golden sections of the logarithm;
    among what was tried, the traced batch included."""
    first, last = math.log(low), math.log(high)
    left, right = last - _GOLDEN * (last - first), first + _GOLDEN * (last - first)
    tried = {each: rate(math.exp(each)) for each in (0.0, left, right)}
    while last - first > math.log(SCALE_TOLERANCE):
        if tried[left] >= tried[right]:
            last, right = right, left
            left = last - _GOLDEN * (last - first)
        else:
            first, left = left, right
            right = first + _GOLDEN * (last - first)
        tried |= {each: rate(math.exp(each)) for each in (left, right) if each not in tried}
    return math.exp(max(tried, key=lambda each: tried[each]))
