"""Notices Python that runs in a backward: functions of one's own and hooks of tensors.

What they ask of a gradient's layout, such as `contiguous()` of one that is, leaves nothing in a
capture.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import fx
from torch.autograd.function import BackwardCFunction
from torch.fx import traceback as fx_traceback

from tightfit.stages.trace.as_eager import replaced

_SUM = getattr(fx_traceback, "GRADIENT_ACC_SPECIAL_STACK", "Gradient addition node")
"""What AOTAutograd writes beside the sums that autograd makes of gradients that meet."""


def is_sum(node: fx.Node) -> bool:
    """True for a sum that autograd makes of two gradients that meet."""
    plain = node.target is torch.ops.aten.add.Tensor and not node.kwargs
    return (
        plain
        and _SUM in (node.stack_trace or "")
        and all(isinstance(part, fx.Node) for part in node.args[:2])
    )


class PythonInBackward:
    """Whether a capture had Python in its backward (`found`), and in it some that takes one of
    `several` gradients, for which autograd gives it zeros or None where only others arrive."""

    def __init__(self) -> None:
        self.found = False
        self.several = False

    @contextlib.contextmanager
    def looking(self) -> Iterator[None]:
        """Within it functions that run and hooks that are given are noticed."""
        with (
            replaced(BackwardCFunction, "apply", self._taking),
            replaced(torch.Tensor, "register_hook", self._hooking),
        ):
            yield

    def _taking(self, original: Any) -> Any:
        noticed = self._noticed(original)

        def call(function: Any, *gradients: Any) -> Any:
            self.several |= len(gradients) > 1
            return noticed(function, *gradients)

        return call

    def _hooking(self, original: Any) -> Any:
        noticed = self._noticed(original)

        def call(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            # The hook of one of several results is given None where only others have a gradient.
            with torch._C.DisableTorchFunction():
                maker = tensor.grad_fn
            self.several |= len(getattr(maker, "_input_metadata", ())) > 1
            return noticed(tensor, *args, **kwargs)

        return call

    def _noticed(self, original: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            self.found = True
            return original(*args, **kwargs)

        return call


def made_of_none(
    graph: fx.GraphModule,
    outputs: Iterable[fx.Node],
    tangents: Iterable[fx.Node],
    gradients: Iterable[fx.Node],
) -> bool:
    """True where one of the gradients, or what one is added to, may hang on no gradient of an
    output: Python in the backward made it, which runs where the gradient that it is given arrives.
    """
    arriving, wanted, forward = set(tangents), set(gradients), set(outputs)
    for node in graph.graph.nodes:
        operands = node.all_input_nodes
        if not arriving.isdisjoint(operands):
            arriving.add(node)
            sums = node.target is torch.ops.aten.add.Tensor and not arriving.issuperset(operands)
            if sums and not forward:
                return True
        elif node in wanted:
            return True
        forward.discard(node)
    return False
