"""The model's tensors while its backward is captured: Python in a backward may run layers again."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import nn

from tightfit.util.errors import ModelError


class BackwardState:
    """The parameters and buffers of a model as a captured forward left them.

    A capture has tensors without data in their places while the forward runs, and the model's own
    ones again when the backward does. A function of autograd that runs a layer again in its
    backward finds those of the forward. What a `backward()` in it adds to `.grad` of these is
    part of the gradients. `inside` says whether a forward or a backward runs, `writes` whether the
    backward has written one of these tensors or put another one in its place.
    """

    def __init__(self, model: nn.Module, label: str) -> None:
        self.model = model
        self.label = label
        self.inside = False
        self.writes = False
        self._left: list[tuple[dict[str, Any], str, Any]] = []

    @contextlib.contextmanager
    def forward(self) -> Iterator[None]:
        """Within it the forward runs."""
        before, self.inside = self.inside, True
        try:
            yield
        finally:
            self.inside = before
            self._left = self._tensors()

    def _tensors(self) -> list[tuple[dict[str, Any], str, Any]]:
        return [
            (fields, name, tensor)
            for module in self.model.modules()
            for fields in (module._parameters, module._buffers)
            for name, tensor in fields.items()
            if tensor is not None
        ]

    def _versions(self) -> list[tuple[int, int]]:
        with torch._C.DisableTorchFunction():
            return [(id(tensor), tensor._version) for _, _, tensor in self._tensors()]

    @contextlib.contextmanager
    def as_the_forward_left_it(self) -> Iterator[None]:
        """Within it the model has the tensors of the last forward."""
        before, self.inside = self._tensors(), True
        try:
            for fields, name, tensor in self._left:
                fields[name] = tensor
            left = self._versions()
            yield
            self.writes |= self._versions() != left
        finally:
            for fields, name, tensor in before:
                fields[name] = tensor
            self.inside = False

    def gradients(
        self,
        grad: Callable[..., Sequence[torch.Tensor | None]],
        outputs: Sequence[torch.Tensor],
        inputs: Sequence[torch.Tensor],
        *args: Any,
        **kwargs: Any,
    ) -> tuple[torch.Tensor | None, ...]:
        """The gradients of the inputs, as `grad` gives them, with what has been added to their
        `.grad`. As in a `backward()`, all functions of autograd run."""
        others = _other_leaves(outputs, inputs)
        gradients = grad(outputs, [*inputs, *others], *args, **kwargs)
        return self._add_accumulated(inputs, gradients[: len(inputs)])

    def _add_accumulated(
        self, inputs: Sequence[torch.Tensor], gradients: Sequence[torch.Tensor | None]
    ) -> tuple[torch.Tensor | None, ...]:
        found = []
        for tensor, gradient in zip(inputs, gradients, strict=True):
            with torch._C.DisableTorchFunction():
                accumulated, tensor.grad = tensor.grad, None
            if accumulated is not None and gradient is not None:
                raise ModelError(
                    f"{self.label}: a tensor of shape {tuple(tensor.shape)} gets a part of its "
                    "gradient from a backward() within the backward and another part from "
                    "elsewhere, which a plan cannot add up in eager's order: let that function of "
                    "autograd return the gradient, or plan without it"
                )
            found.append(gradient if accumulated is None else accumulated)
        return tuple(found)


def _other_leaves(
    outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor]
) -> list[torch.Tensor]:
    """The leaves that outputs hang on beside the inputs, such as those that a forward makes only to
    have a function of autograd run its backward."""
    known = {id(tensor) for tensor in inputs}
    with torch._C.DisableTorchFunction():
        reached: list[Any] = [tensor.grad_fn for tensor in outputs if tensor.grad_fn is not None]
        seen = set(reached)
        found: dict[int, torch.Tensor] = {}
        while reached:
            node = reached.pop()
            leaf = getattr(node, "variable", None)
            if leaf is not None and id(leaf) not in known:
                found[id(leaf)] = leaf
            further = {one for one, _ in node.next_functions if one is not None} - seen
            seen |= further
            reached += further
    return list(found.values())
