"""Steps that the ranks of a pipeline would not compute as one process does."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from tightfit.schemas.graph.op_arguments import decode_arguments
from tightfit.schemas.graph.training_graph import BASELINE_KINDS, NO_VALUE, Graph, Op
from tightfit.schemas.pipeline import BACKWARD, FORWARD, PipelineUnit
from tightfit.util.errors import ModelError

_BATCH_NORM_BACKWARDS = (
    "aten.native_batch_norm_backward.default",
    "aten.cudnn_batch_norm_backward.default",
    "aten.batch_norm_backward.default",
)
"""Backwards that are given running statistics and, in training, do not look at them."""

_SHAPE_ONLY_RANDOM_OPS = frozenset(
    f"aten.{name}"
    for name in (
        *("native_dropout.default", "bernoulli.p", "rand.default", "randn.default"),
        *("rand_like.default", "randn_like.default", "randint.default", "randint.low"),
        *("randint_like.default", "randint_like.low_dtype", "randperm.default"),
        *("uniform.default", "normal_functional.default"),
    )
)
"""Operators that draw as much whatever the contents of what they are given."""


def check_step(graph: Graph, units: Mapping[int, PipelineUnit]) -> None:
    """Raises ModelError, in a sentence, for a step that cannot be a pipeline's; `units` are the
    units of nodes."""
    _check_gradients(graph)
    _check_guards(graph)
    _check_draws(graph)
    _check_buffers(graph, units)


def check_loss(graph: Graph) -> None:
    """Raises ModelError where the last stage has no scalar to begin the backward with."""
    if graph.has_loss:
        return
    given = {output.tangent: output.value for output in graph.outputs if output.tangent != NO_VALUE}
    if [graph.values[value].shape for value in given.values()] != [[]]:
        raise ModelError(
            f"{graph.model}: gives not one scalar for its backward to begin with: plan it with a "
            "loss, such as lambda output: output.loss"
        )


def _check_gradients(graph: Graph) -> None:
    for gradient in graph.gradients:
        owner = graph.values[gradient.value]
        if owner.kind == "input":
            raise ModelError(
                f"{graph.model}: the input {owner.path or owner.id} requires a gradient, which a "
                "pipeline does not give back"
            )
    for output in graph.outputs:
        given = output.value != NO_VALUE and graph.values[output.value].kind in BASELINE_KINDS
        if given and output.tangent != NO_VALUE:
            raise ModelError(
                f"{graph.model}: returns {graph.values[output.value].path or 'a constant'} itself, "
                "which receives a gradient from the loss: return what the loss needs of it"
            )


def _check_guards(graph: Graph) -> None:
    try:
        guards: Any = json.loads(graph.guards)
        autocast = bool(guards.get("autocast", {}).get("enabled"))
        assigned = list(guards.get("assigned_buffers", []))
        stored = (guards.get("guards") or {}).get("side_effects", [])
    except (ValueError, AttributeError, TypeError):
        raise ModelError(f"{graph.model}: the guards are not JSON of the known form") from None
    if autocast:
        raise ModelError(
            f"{graph.model}: was traced under autocast, whose casts several microbatches "
            "of one process share: plan the pipeline without it"
        )
    if stored:
        raise ModelError(
            f"{graph.model}: its forward changes {stored[0][3]} in each call, which the ranks of a "
            "pipeline do not: return what it stores"
        )
    if assigned:
        raise ModelError(
            f"{graph.model}: its forward puts another tensor in the place of {assigned[0]}, which "
            "the ranks of a pipeline do not"
        )


def _check_draws(graph: Graph) -> None:
    for op in graph.ops:
        if op.random and op.phase != FORWARD:
            raise ModelError(
                f"{graph.model}: {op.target} draws random numbers in the backward, which come in "
                "another order in a pipeline"
            )
        if op.random and op.target not in _SHAPE_ONLY_RANDOM_OPS:
            raise ModelError(
                f"{graph.model}: {op.target} draws random numbers, how many may depend on what it "
                "is given, so that other ranks cannot draw ahead of it"
            )


def _check_buffers(graph: Graph, units: Mapping[int, PipelineUnit]) -> None:
    written: dict[int, PipelineUnit] = {}
    for op in graph.ops:
        for value in op.writes:
            unit = units.get(op.id)
            storage = graph.values[value].storage
            if unit is None or written.setdefault(storage, unit) != unit:
                raise _shared_buffer_error(graph, value)
    for op in graph.ops:
        for value in op.inputs:
            unit = written.get(graph.values[value].storage)
            if (
                unit is not None
                and units.get(op.id, unit) != unit
                and not _ignores_running_stats(op)
            ):
                raise _shared_buffer_error(graph, value)


def _shared_buffer_error(graph: Graph, value: int) -> ModelError:
    path = graph.values[value].path or "a buffer"
    return ModelError(
        f"{graph.model}: {path} is written by the forward of one stage and read elsewhere, when "
        "another microbatch has written it: let one stage have all of that"
    )


def _ignores_running_stats(op: Op) -> bool:
    """Whether a batch norm's backward does not look at running statistics."""
    if op.target not in _BATCH_NORM_BACKWARDS or op.phase != BACKWARD:
        return False
    args, _ = decode_arguments(op.arguments)
    return len(args) > 7 and args[7] is True
