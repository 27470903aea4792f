"""Which groups take longer as one kernel than as ATen's calls, one after the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from tightfit.schemas.graph.fused_groups import GroupBody
from tightfit.schemas.graph.op_arguments import decode_arguments, iterate_argument_values
from tightfit.schemas.graph.training_graph import NO_VALUE
from tightfit.stages.torch_utils.devices import preserve_random_states
from tightfit.stages.torch_utils.fused_group_operators import fill_form, group_kernel, tensor_forms
from tightfit.stages.torch_utils.memory_meter import time_calls
from tightfit.stages.torch_utils.operators import decode_argument, resolve
from tightfit.stages.torch_utils.timing import host_seconds

ROUNDS = 9
"""On the CPU both run so many times, in turn: the least counts, which other work disturbs least."""
SLOWDOWN_MARGIN = 1.1
"""How many times as long as ATen's calls a kernel may take: what is below is noise."""


def is_slower_than_aten(body: GroupBody, device: torch.device) -> bool:
    """Whether the kernel of a body takes longer than its calls of ATen."""
    compiled, calls = group_kernel(body, device), _aten_runner(body)
    with preserve_random_states():
        given = [
            fill_form(form, torch.Tensor.normal_, device) for form in tensor_forms(body.inputs)
        ]
    fused, alone = min_seconds([lambda: compiled(given), lambda: calls(given)], device)
    return fused > SLOWDOWN_MARGIN * alone


def min_seconds(calls: Sequence[Callable[[], Any]], device: torch.device) -> list[float]:
    """The seconds that each of some calls takes at least, on the CPU run in turn."""
    if device.type == "cuda":
        return [time_calls(device, call, repeatable=True).first_quartile for call in calls]
    seconds = [[host_seconds(call) for call in calls] for _ in range(ROUNDS)]
    return [min(own) for own in zip(*seconds, strict=True)]


def _aten_runner(body: GroupBody) -> Callable[[Sequence[Tensor]], list[Tensor]]:
    """Runs the calls of a body, each value let go after its last use, as a step does."""
    calls = [(resolve(call.target), *decode_arguments(call.arguments), call) for call in body.calls]
    read = [set(iterate_argument_values([args, [*named.values()]])) for _, args, named, _ in calls]
    last = {value: at for at, values in enumerate(read) for value in values}
    ends = [
        [value for value in values if last[value] == at and value not in body.outputs]
        for at, values in enumerate(read)
    ]

    def run(given: Sequence[Tensor]) -> list[Tensor]:
        values: dict[int, Any] = dict(enumerate(given))
        for (operator, args, named, call), ended in zip(calls, ends, strict=True):
            keywords = {name: decode_argument(argument, values) for name, argument in named.items()}
            made = operator(*[decode_argument(argument, values) for argument in args], **keywords)
            results = made if isinstance(made, list | tuple) else [made]
            values.update(zip(call.outputs, results, strict=True))
            for value in (*ended, NO_VALUE):
                values.pop(value, None)
        return [values[value] for value in body.outputs]

    return run
