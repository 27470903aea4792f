"""Outputs that other outputs are made of: what they receive from outside is not all of their
gradient, so that nobody may ask for it."""

from __future__ import annotations

import sys
import types
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch

Known = weakref.ref[torch.Tensor]

_ASKING = (torch.autograd.grad.__code__, torch.autograd.backward.__code__)


def only_hook(known: Known) -> Callable[[torch.Tensor], None]:
    """A hook of such an output, which refuses any further one."""

    def check(gradient: torch.Tensor) -> None:
        check_asked([known])
        output = known()
        hooks: Any = None if output is None else output._backward_hooks
        if output is not None and (output.retains_grad or len(hooks or ()) > 1):
            raise RuntimeError(
                "an output that other outputs are made of has a hook or retains its gradient, "
                "of which a plan knows only what comes from outside: "
                "give them to a copy (clone()) of that output"
            )

    return check


def check_asked(inner: Sequence[Known]) -> None:
    """Refuses a backward, from within it, that is asked for the gradient of such an output."""
    asked = _asked() if inner else []
    for known in inner:
        output = known()
        if output is not None and any(
            one is output or getattr(one, "node", None) is output.grad_fn for one in asked
        ):
            raise RuntimeError(
                "the gradient of an output that other outputs are made of is asked for, of which a "
                "plan knows only what comes from outside: ask for that of the original model"
            )


def _asked() -> list[Any]:
    """What the running `grad` or `backward` was asked for the gradients of."""
    frame: types.FrameType | None = sys._getframe(2)
    while frame is not None:
        if frame.f_code in _ASKING:
            given = frame.f_locals.get("inputs")
            if isinstance(given, dict):
                return list(given.values())
            return list(given) if isinstance(given, list | tuple) else [given]
        frame = frame.f_back
    return []
