"""The distinct ops of a graph, each with its in-place forms: what a profile holds a row for."""

from __future__ import annotations

import hashlib
from pathlib import Path

from tightfit.schemas.costs import RANDOM_STATE_TARGET, REPEATED, Costs, op_key, read_costs
from tightfit.schemas.errors import ArtifactError
from tightfit.schemas.graph import LOSS_TARGET, NONE, Graph, Op
from tightfit.schemas.repeat import repeat_of

RANDOM_STATE_KEY = hashlib.sha256(RANDOM_STATE_TARGET.encode()).hexdigest()
"""The key of the row that prices the random state."""


def distinct_forms(graph: Graph) -> dict[str, tuple[Op, int]]:
    """The key of each distinct op and in-place form, with the first op that has it and the value
    overwritten, NONE for the ordinary form, REPEATED for that of a repeated run. A loss that only
    makes tangents has no row."""
    forms: dict[str, tuple[Op, int]] = {}
    for op in graph.all_ops:
        if op.target == LOSS_TARGET and not graph.has_loss:
            continue
        repeated = [] if repeat_of(graph, op) is None else [REPEATED]
        for value in (NONE, *repeated, *op.in_place):
            forms.setdefault(op_key(graph, op, value), (op, value))
    return forms


def from_file(graph: Graph, path: Path | str) -> Costs:
    """The costs of a graph from a file; raises ArtifactError when one of them is missing."""
    costs = read_costs(path)
    for key, (op, _) in distinct_forms(graph).items():
        if key not in costs.rows:
            raise ArtifactError(f"{path}: lacks the cost of op {op.id} ({op.target})")
    keys = [key for key in (*distinct_forms(graph), RANDOM_STATE_KEY) if key in costs.rows]
    return Costs([costs.rows[key] for key in keys], costs.device)
