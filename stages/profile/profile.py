"""The costs of a graph: what the library knows, and measurements of the rest."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch

from schemas.costs import Cost, Costs
from schemas.errors import ConfigError
from schemas.graph import LOSS_TARGET, Graph, Op
from stages.profile.forms import RANDOM_STATE_KEY, distinct_forms
from stages.profile.library import Library
from stages.profile.loss import Loss, measure_loss
from stages.profile.measure import footprint, measure_op, measure_random_state

Report = Callable[[int, int, str], None]
"""Called ahead of each op that is measured: how many are done, how many there are, the target."""


def profile(
    graph: Graph,
    loss: Loss | None,
    library: Library,
    again: bool = False,
    report: Report | None = None,
) -> Costs:
    """The costs of all ops of a graph with their in-place forms, and of the random state.

    What the library has is taken from it, the rest is measured on the graph's device and added to
    it; with `again` all is measured. The loss is measured where the graph has one. At no time is
    more memory taken than the largest op takes with its operands. Raises ConfigError when the
    graph has a loss and `loss` is None, ModelError when an op cannot be run.
    """
    if graph.has_loss and loss is None:
        raise ConfigError(f"the graph of {graph.model} has a loss, its profile needs the factory")
    forms = distinct_forms(graph)
    missing = [key for key in forms if again or library.find(key) is None]
    by_op = _by_op(forms, missing)
    device = torch.device(graph.device)
    limit = max(footprint(graph, op) for op in graph.ops)
    cuda = [device] if device.type == "cuda" else []
    measured: list[Cost] = []
    with torch.random.fork_rng(devices=cuda):
        torch.manual_seed(0)
        try:
            for done, (op_id, values) in enumerate(by_op.items()):
                op = graph.ops[op_id]
                if report is not None:
                    report(done, len(by_op), op.target)
                if op.target == LOSS_TARGET and loss is not None:
                    measured.append(measure_loss(graph, loss))
                else:
                    measured += measure_op(graph, op, values, device, limit)
            if again or library.find(RANDOM_STATE_KEY) is None:
                measured.append(measure_random_state(device))
        finally:
            library.add(measured)
    rows = [library.costs.rows[key] for key in [*forms, RANDOM_STATE_KEY]]
    return Costs(rows, library.costs.device)


def _by_op(forms: dict[str, tuple[Op, int]], keys: Iterable[str]) -> dict[int, set[int]]:
    """For each op that must run, the forms that are wanted of it."""
    wanted: dict[int, set[int]] = {}
    for key in keys:
        op, value = forms[key]
        wanted.setdefault(op.id, set()).add(value)
    return wanted
