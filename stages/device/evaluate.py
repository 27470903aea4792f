"""Runs the body of a group by ATen, call by call: what a compiled kernel is compared with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor
from torch._ops import OpOverload

from tightfit.schemas.arguments import decode_arguments
from tightfit.schemas.errors import ArtifactError
from tightfit.schemas.graph import NONE
from tightfit.schemas.groups import Body
from tightfit.stages.device.operators import decode, resolve


def evaluate(body: Body, inputs: Sequence[Tensor]) -> list[Tensor]:
    """The outputs of a body, in its order, on tensors of the forms that it names; raises
    ArtifactError, before anything runs, where it names an operator that is not there or one that
    writes over an argument."""
    operators = [_pure(call.target) for call in body.calls]
    values: dict[int, Any] = dict(enumerate(inputs))
    for call, operator in zip(body.calls, operators, strict=True):
        args, kwargs = decode_arguments(call.arguments)
        given = [decode(argument, values) for argument in args]
        named = {name: decode(argument, values) for name, argument in kwargs.items()}
        made = operator(*given, **named)
        results = made if isinstance(made, list | tuple) else [made]
        for value, result in zip(call.outputs, results, strict=True):
            if value != NONE:
                values[value] = result
    return [values[value] for value in body.outputs]


def _pure(target: str) -> OpOverload:
    operator = resolve(target)
    if operator._schema.is_mutable:
        raise ArtifactError(f"a group names {target}, which writes over its arguments")
    return operator
