"""One training step of a module, run in the way that all memory figures assume."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from tightfit.schemas.errors import ModelError
from tightfit.schemas.graph import NONE, Graph
from tightfit.stages.device.factory import Built, Sample
from tightfit.stages.device.leaves import map_leaves
from tightfit.stages.device.trees import flatten

MakeTangent = Callable[[Tensor], Tensor]
"""Makes the gradient that arrives at an output."""


@dataclass(frozen=True)
class Stepper:
    """Runs steps of a model or of its plan.

    `receives` are the positions, among the leaves of the output, that get a gradient, each tensor
    once. Without a loss their gradients are made after the forward; outputs, these gradients and
    the loss are held by the caller until the step has ended.
    """

    receives: Sequence[int]
    loss: Callable[[Any], Tensor] | None

    @classmethod
    def of(cls, graph: Graph, built: Built) -> Stepper:
        """The stepper of a traced model; raises ModelError when the loss is not the traced one."""
        if graph.has_loss != (built.loss is not None):
            raise ModelError(
                f"{built.label} returns {'no' if graph.has_loss else 'a'} loss, unlike when "
                f"{graph.model} was traced"
            )
        first: dict[int, int] = {}
        for index, output in enumerate(graph.outputs):
            if output.tangent != NONE:
                first.setdefault(output.tangent, index)
        return cls(list(first.values()), built.loss)

    def run(
        self, module: nn.Module, sample: Sample, tangent: MakeTangent = torch.ones_like
    ) -> tuple[Any, Any]:
        """One forward and backward; gives the output, and the loss or the gradients it received."""
        output = self.forward(module, sample)
        return output, self.backward(output, tangent)

    def forward(self, module: nn.Module, sample: Sample) -> Any:
        """The output of one forward."""
        args, kwargs = sample
        return module(*args, **kwargs)

    def backward(self, output: Any, tangent: MakeTangent = torch.ones_like) -> Any:
        """One backward; gives the loss or the gradients that the output received."""
        if self.loss is not None:
            value = self.loss(output)
            with _without_autocast(value.device.type):
                value.backward()
            return value
        leaves, _ = flatten(output)
        receiving = [leaves[index] for index in self.receives]
        del leaves
        tangents = [tangent(leaf) for leaf in receiving]
        device = receiving[0].device.type if receiving else "cpu"
        with _without_autocast(device):
            torch.autograd.backward(receiving, tangents)
        return tangents


def _without_autocast(device: str) -> contextlib.AbstractContextManager[Any]:
    """A backward runs outside of autocast, also where the forward is within it."""
    if torch.is_autocast_enabled(device):
        return torch.autocast(device, enabled=False)
    return contextlib.nullcontext()


def random_tangents(seed: int) -> MakeTangent:
    """Makes the same normally distributed tangents whenever it is used anew, without touching the
    default generator."""
    generator = torch.Generator().manual_seed(seed)

    def make(leaf: Tensor) -> Tensor:
        dtype = torch.complex64 if leaf.is_complex() else torch.float32
        numbers = torch.randn(leaf.shape, generator=generator, dtype=dtype, device="cpu")
        return torch.empty_like(leaf).copy_(numbers)

    return make


def fresh_sample(sample: Sample) -> Sample:
    """A sample whose tensors that require gradients are leaves of their own, without gradient."""

    def renew(leaf: Any) -> Any:
        if isinstance(leaf, Tensor) and leaf.requires_grad:
            return leaf.detach().clone().requires_grad_()
        return leaf

    return map_leaves(renew, sample)


def forget_gradients(module: nn.Module, sample: Sample) -> None:
    """Sets `.grad` of all parameters and inputs to None."""
    module.zero_grad(set_to_none=True)
    for leaf in flatten(sample)[0]:
        if isinstance(leaf, Tensor):
            leaf.grad = None
