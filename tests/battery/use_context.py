"""What a use is given: a module, the contents of its calls, and a trail to leave."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from tests.battery.case import Case
from tests.battery.observations import Trail
from tightfit.stages.torch_utils.model_factory import Sample


class NotApplicable(Exception):  # noqa: N818
    """A use has nothing to do on this model."""


class Run:
    """One use of one module. `module` may be exchanged by the use."""

    def __init__(
        self, case: Case, module: nn.Module, again: Callable[[nn.Module], nn.Module]
    ) -> None:
        self.case = case
        self.module: Any = module
        self.again = again
        """Makes of a further model what `module` is: itself, or its planned module."""
        self.trail = Trail()
        self.after = contextlib.ExitStack()
        self.say = self.trail.say

    @contextlib.contextmanager
    def started(self) -> Iterator[None]:
        """Seeds all random numbers; puts back afterwards what the use has changed."""
        random.seed(3)
        np.random.seed(3)
        torch.manual_seed(3)
        with self.after:
            yield

    def need(self, condition: object) -> None:
        """Ends a use that has nothing to do here."""
        if not condition:
            raise NotApplicable

    def change(self, owner: Any, name: str, value: Any) -> None:
        """Sets an attribute of something that outlives the use."""
        self.after.callback(setattr, owner, name, getattr(owner, name))
        setattr(owner, name, value)

    def batch(self, number: int = 0) -> Sample:
        """The contents of a call, as tensors of their own."""
        return self.case.sample(number)

    def inputs(self, number: int = 0) -> list[Tensor]:
        """All tensors of a call."""
        return tensors(self.batch(number))

    def forward(self, number: int = 0, module: Any = None) -> Any:
        """Calls the module."""
        return self.call(self.batch(number), module)

    def call(self, sample: Sample, module: Any = None) -> Any:
        """Calls the module on given contents."""
        args, kwargs = sample
        with self.case.around():
            return (self.module if module is None else module)(*args, **kwargs)

    def loss(self, output: Any) -> Tensor:
        """The planned loss, or a weighted sum of all outputs that can have a gradient."""
        if self.case.loss is not None:
            return self.case.loss(output)
        return weighted(differentiable(output))

    def backward(self, number: int = 0) -> Any:
        """One forward and backward; gives the output."""
        output = self.forward(number)
        loss = self.loss(output)
        self.say("loss", loss)
        loss.backward()
        return output

    def train(self, optimizer: torch.optim.Optimizer | None = None, steps: int = 3) -> None:
        """Some steps of training on other contents each."""
        optimizer = optimizer or self.sgd()
        for number in range(steps):
            optimizer.zero_grad()
            self.say(f"output {number}", self.backward(number))
            self.gradients(f"step {number}")
            optimizer.step()
        self.state(f"after {steps} steps")

    def sgd(self, rate: float = 0.05) -> torch.optim.Optimizer:
        """Plain gradient descent on all parameters."""
        parameters = list(self.module.parameters())
        self.need(parameters)
        return torch.optim.SGD(parameters, rate)

    def gradients(self, when: str = "") -> None:
        """Says the gradients of all parameters."""
        for name, parameter in self.module.named_parameters():
            self.say(f"gradient of {name} {when}", parameter.grad)

    def state(self, when: str = "at the end") -> None:
        """Says parameters, buffers, gradients and the random state."""
        for name, parameter in self.module.named_parameters():
            self.say(f"{name} {when}", parameter)
        for name, buffer in self.module.named_buffers():
            self.say(f"{name} {when}", buffer)
        self.gradients(when)
        self.say(f"random state {when}", torch.get_rng_state())
        if torch.device(self.case.device).type == "cuda":
            self.say(f"random state of the GPU {when}", torch.cuda.get_rng_state(self.case.device))

    def first(self, kind: type | tuple[type, ...]) -> Any:
        """The first submodule of a kind; the use ends where there is none."""
        found = next((m for m in self.module.modules() if isinstance(m, kind)), None)
        self.need(found is not None)
        return found

    def weight(self) -> nn.Parameter:
        """The model's first matrix that is trained."""
        found = next((p for p in self.module.parameters() if p.dim() > 1 and p.requires_grad), None)
        self.need(found is not None)
        assert found is not None
        return found

    def owner(self, wanted: nn.Parameter) -> tuple[nn.Module, str]:
        """The submodule and the name of a parameter that has one name only."""
        places = [
            (module, name)
            for module in self.module.modules()
            for name, parameter in module._parameters.items()
            if parameter is wanted
        ]
        self.need(len(places) == 1)
        return places[0]


def tensors(tree: Any) -> list[Tensor]:
    """All tensors of a structure."""
    return [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, Tensor)]


def differentiable(output: Any) -> list[Tensor]:
    """The outputs that can have a gradient, each once, in order, of whatever structure."""
    found: list[Tensor] = []

    def walk(thing: Any) -> None:
        if isinstance(thing, Tensor):
            if thing.requires_grad and not any(thing is other for other in found):
                found.append(thing)
        elif isinstance(thing, dict):
            for item in thing.values():
                walk(item)
        elif isinstance(thing, (list, tuple)):
            for item in thing:
                walk(item)
        elif hasattr(thing, "__dataclass_fields__"):
            for name in thing.__dataclass_fields__:
                walk(getattr(thing, name))

    walk(output)
    return found


def weighted(outputs: list[Tensor]) -> Tensor:
    """A loss that gives every number of every output a gradient of its own."""
    total = torch.zeros(())
    for place, output in enumerate(outputs):
        generator = torch.Generator().manual_seed(place)
        weights = torch.randn(output.shape, generator=generator, dtype=torch.float64)
        real = torch.view_as_real(output).sum(-1) if output.is_complex() else output
        total = total + (real * weights.to(real)).sum().float()
    return total


def tangent(output: Tensor, seed: int = 5) -> Tensor:
    """A gradient for an output."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(output.shape, generator=generator, dtype=torch.float64).to(output)
