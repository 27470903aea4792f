"""Outputs that other outputs are made of: what they receive from outside is not all of their
gradient, so that nobody may ask for it."""

from __future__ import annotations

import sys
import types
import weakref
from collections.abc import Sequence
from typing import Any

import torch

_BACKWARD_CALLS = (torch.autograd.grad.__code__, torch.autograd.backward.__code__)


class IntermediateOutput:
    """One such output, as long as somebody keeps it, and its hooks, of which the first is ours."""

    def __init__(self, output: torch.Tensor) -> None:
        self.known = weakref.ref(output)
        self.hooks: Any = output._backward_hooks

    def check(self, asked: list[Any]) -> None:
        """Raises RuntimeError where it has further hooks, retains its gradient or is `asked` for
        it."""
        output = self.known()
        if len(self.hooks) > 1 or (output is not None and output.retains_grad):
            raise RuntimeError(
                "an output that other outputs are made of has a hook or retains its gradient, "
                "of which a plan knows only what comes from outside: "
                "give them to a copy (clone()) of that output"
            )
        if output is not None and any(
            one is output or getattr(one, "node", None) is output.grad_fn for one in asked
        ):
            raise RuntimeError(
                "the gradient of an output that other outputs are made of is asked for, of which a "
                "plan knows only what comes from outside: ask for that of the original model"
            )


def watch_intermediate_outputs(
    outputs: Sequence[torch.Tensor], numbers: Sequence[int]
) -> list[IntermediateOutput]:
    """The hooks of the outputs, by number; wherever a backward meets any output, these are
    checked."""
    found: list[IntermediateOutput] = []
    for output in outputs if numbers else ():
        output.register_hook(lambda gradient: check_intermediate_outputs(found))
    found += [IntermediateOutput(outputs[number]) for number in numbers]
    return found


def check_intermediate_outputs(outputs: Sequence[IntermediateOutput]) -> None:
    """Refuses, from within a backward, one in which somebody would see such a gradient."""
    asked = _requested_inputs() if outputs else []
    for output in outputs:
        output.check(asked)


def _requested_inputs() -> list[Any]:
    """What the running `grad` or `backward` was asked for the gradients of."""
    call = running_backward()
    if call is None:
        return []
    given = call.f_locals.get("inputs")
    if isinstance(given, dict):
        return list(given.values())
    return list(given) if isinstance(given, list | tuple) else [given]


def running_backward() -> types.FrameType | None:
    """The innermost running call of `torch.autograd.grad` or `backward`."""
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code not in _BACKWARD_CALLS:
        frame = frame.f_back
    return frame
