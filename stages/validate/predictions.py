"""What a plan says of its step, before anything runs; needs no PyTorch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tightfit.schemas import store
from tightfit.schemas.graph.op_arguments import decode_arguments
from tightfit.schemas.graph.training_graph import Graph, Op
from tightfit.schemas.measurement import Measurement
from tightfit.schemas.plan import TransferTotals
from tightfit.util.errors import ArtifactError

_PLAN_KEYS = ("strategy", "budget", "budget_bytes", "status", "message", "time", "peak", "gap")
_NUMBER_KEYS = ("budget_total", "time", "peak", "gap")
_MAX_NUMBER = 1 << 62


def read_predictions(path: Path | str) -> dict[str, Any]:
    """What the plan in a file says of its step; raises ArtifactError, which names the file, where
    it is none."""
    plan = store.read_json(path)
    try:
        _check_predictions(plan)
    except ArtifactError as error:
        raise ArtifactError(f"{path}: {error}") from error
    return plan


def _check_predictions(plan: Mapping[str, Any]) -> None:
    """Raises ArtifactError where a plan lacks something, or says what no plan says."""
    for key in _PLAN_KEYS:
        if key not in plan:
            raise ArtifactError(f"the plan lacks the key {key!r}")
    foretold = plan.get("gpu") or {}
    if not isinstance(foretold, Mapping):
        raise ArtifactError("the plan does not say what it takes of a GPU")
    figures = {key: plan.get(key) for key in _NUMBER_KEYS}
    figures |= {f"gpu.{key}": foretold.get(key) for key in ("allocated", "reserved")}
    # A budget may be smaller than what is there before the step.
    below = plan["budget_bytes"]
    figures["budget_bytes"] = -below if isinstance(below, int) and below < 0 else below
    for key, value in figures.items():
        if value is not None and not _is_number(value):
            raise ArtifactError(f"{key} is {plan.get(key, value)!r}, which a plan cannot have")
    threads = plan.get("threads")
    if threads is not None and (type(threads) is not int or not 1 <= threads <= 1 << 16):
        raise ArtifactError(f"threads is {threads!r}, which a plan cannot have")
    predicted_transfers(plan)


def predicted_measurement(
    graph: Graph, plan: Mapping[str, Any], plan_seconds: float | None
) -> Measurement:
    """The measurement of a plan that nothing was measured of yet."""
    _check_predictions(plan)
    foretold, sent = plan.get("gpu") or {}, predicted_transfers(plan)
    return Measurement(
        model=graph.model,
        device=graph.device,
        strategy=str(plan["strategy"]),
        budget=str(plan["budget"]),
        budget_bytes=plan["budget_bytes"],
        budget_total=plan.get("budget_total"),
        status=str(plan["status"]),
        message=str(plan["message"]),
        gap=plan["gap"],
        predicted_peak=plan["peak"],
        predicted_time=plan["time"],
        plan_seconds=plan_seconds,
        predicted_allocated=foretold.get("allocated"),
        predicted_reserved=foretold.get("reserved"),
        predicted_wait_seconds=None if sent is None else sent.wait_seconds,
    )


def predicted_transfers(plan: Mapping[str, Any]) -> TransferTotals | None:
    """What a plan says of its transfers, None where it has none; raises ArtifactError where it says
    no such thing."""
    said = plan.get("transfers")
    if said is None:
        return None
    try:
        found = TransferTotals(**said)
    except TypeError as error:
        raise ArtifactError("the plan does not say what it sends") from error
    sizes = (found.offloaded_bytes, found.prefetched_bytes, found.host_peak)
    if not all(isinstance(size, int) and _is_number(size) for size in sizes):
        raise ArtifactError("the plan does not say what it sends in bytes")
    if not _is_number(found.wait_seconds):
        raise ArtifactError("the plan does not say what it sends in seconds")
    return found


def _is_number(value: Any) -> bool:
    plain = isinstance(value, int | float) and not isinstance(value, bool)
    return plain and 0 <= value < _MAX_NUMBER


def is_self_checkpointing(graph: Graph) -> bool:
    """Whether the forward of a traced model checkpoints parts of itself."""
    return json.loads(graph.guards).get("checkpointed") is True


def compare_with_self_checkpointing(planned: int, own: int) -> tuple[str, str]:
    """What is wrong with a plan, "" for nothing, and what else is to be said of it, both as
    clauses: `planned` are the bytes of its step, `own` those of the model's as it is."""
    if planned > own:
        return (
            f"the model, which checkpoints itself, takes less as it is, {own:,} bytes where the "
            f"plan takes {planned:,}: plan with a smaller budget",
            "",
        )
    return "", f"the plan replaces the model's own checkpointing, with which it takes {own:,} bytes"


_INDEX_PUT_OPS = ("aten.index_put.default", "aten._unsafe_index_put.default")


def find_nondeterministic_ops(graph: Graph) -> list[str]:
    """The operators of a step that several threads of a CPU add up in no fixed order."""
    return sorted(
        {op.target for op in graph.ops if op.target in _INDEX_PUT_OPS and _accumulates(op)}
    )


def _accumulates(op: Op) -> bool:
    args, kwargs = decode_arguments(op.arguments)
    return bool(args[3] if len(args) > 3 else kwargs.get("accumulate", False))
