"""Runs the body of a group by ATen, call by call: what a compiled kernel is compared with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from schemas.arguments import decode_arguments
from schemas.graph import NONE
from schemas.groups import Body
from stages.device.operators import decode, resolve


def evaluate(body: Body, inputs: Sequence[Tensor]) -> list[Tensor]:
    """The outputs of a body, in its order, on tensors of the forms that it names; raises
    ArtifactError where it names an operator that is not there."""
    values: dict[int, Any] = dict(enumerate(inputs))
    for call in body.calls:
        args, kwargs = decode_arguments(call.arguments)
        given = [decode(argument, values) for argument in args]
        named = {name: decode(argument, values) for name, argument in kwargs.items()}
        made = resolve(call.target)(*given, **named)
        results = made if isinstance(made, list | tuple) else [made]
        for value, result in zip(call.outputs, results, strict=True):
            if value != NONE:
                values[value] = result
    return [values[value] for value in body.outputs]
