"""Which groups take longer as one kernel than as ATen's calls, one after the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from tightfit.schemas.arguments import argument_values, decode_arguments
from tightfit.schemas.graph import NONE
from tightfit.schemas.groups import Body
from tightfit.stages.device.clocks import host_seconds
from tightfit.stages.device.devices import kept_random_states
from tightfit.stages.device.groups import filled, forms_of, kernel
from tightfit.stages.device.meter import time_calls
from tightfit.stages.device.operators import decode, resolve

ROUNDS = 9
"""On the CPU both run so many times, in turn: the least counts, which other work disturbs least."""
MARGIN = 1.1
"""How many times as long as ATen's calls a kernel may take: what is below is noise."""


def slower_than_aten(body: Body, device: torch.device) -> bool:
    """Whether the kernel of a body takes longer than its calls of ATen."""
    compiled, calls = kernel(body, device), _calls_of(body)
    with kept_random_states():
        given = [filled(form, torch.Tensor.normal_, device) for form in forms_of(body.inputs)]
    fused, alone = least_seconds([lambda: compiled(given), lambda: calls(given)], device)
    return fused > MARGIN * alone


def least_seconds(calls: Sequence[Callable[[], Any]], device: torch.device) -> list[float]:
    """The seconds that each of some calls takes at least, on the CPU run in turn."""
    if device.type == "cuda":
        return [time_calls(device, call, repeatable=True).first_quartile for call in calls]
    seconds = [[host_seconds(call) for call in calls] for _ in range(ROUNDS)]
    return [min(own) for own in zip(*seconds, strict=True)]


def _calls_of(body: Body) -> Callable[[Sequence[Tensor]], list[Tensor]]:
    """Runs the calls of a body, each value let go after its last use, as a step does."""
    calls = [(resolve(call.target), *decode_arguments(call.arguments), call) for call in body.calls]
    read = [set(argument_values([args, [*named.values()]])) for _, args, named, _ in calls]
    last = {value: at for at, values in enumerate(read) for value in values}
    ends = [
        [value for value in values if last[value] == at and value not in body.outputs]
        for at, values in enumerate(read)
    ]

    def run(given: Sequence[Tensor]) -> list[Tensor]:
        values: dict[int, Any] = dict(enumerate(given))
        for (operator, args, named, call), ended in zip(calls, ends, strict=True):
            keywords = {name: decode(argument, values) for name, argument in named.items()}
            made = operator(*[decode(argument, values) for argument in args], **keywords)
            results = made if isinstance(made, list | tuple) else [made]
            values.update(zip(call.outputs, results, strict=True))
            for value in (*ended, NONE):
                values.pop(value, None)
        return [values[value] for value in body.outputs]

    return run
