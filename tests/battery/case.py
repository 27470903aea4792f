"""A model that the battery plans and uses."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from tightfit.stages.torch_utils.model_factory import (
    BuiltModel,
    Sample,
    check_factory_result,
    map_leaves,
)

SEED = 11


@dataclass(frozen=True)
class Case:
    """A model by how it is made, and the contents of its calls by number: 0 is the sample.

    `loss` is planned with it. `around` is the context in which it is planned and called. `planned`
    makes what is planned where that is not what it is compared with. Nothing is kept from one
    making to the next, so that a use may do what it likes to what it was given. All of it lies on
    `device`; `on` gives the same case on another one.
    """

    name: str
    model: Callable[[], nn.Module]
    sample: Callable[[int], Sample]
    loss: Callable[[Any], Tensor] | None = None
    around: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext
    planned: Callable[[], nn.Module] | None = None
    device: str = "cpu"

    def on(self, device: str) -> Case:
        """The same case with models and contents on a device."""
        if device == self.device:
            return self

        def moved(leaf: Any) -> Any:
            if not isinstance(leaf, Tensor):
                return leaf
            return leaf.detach().to(device).requires_grad_(leaf.requires_grad)

        sample = self.sample
        return replace(self, sample=lambda number: map_leaves(moved, sample(number)), device=device)

    def make(self, planned: bool = False) -> nn.Module:
        """A new model, always from the same random numbers."""
        torch.manual_seed(SEED)
        made = self.planned() if planned and self.planned is not None else self.model()
        return made if self.device == "cpu" else made.to(self.device)

    def built(self) -> BuiltModel:
        """The model that is planned, with its sample."""
        sample = self.sample(0)
        made = (
            (self.make(True), sample)
            if self.loss is None
            else (
                self.make(True),
                sample,
                self.loss,
            )
        )
        return check_factory_result(made, self.name)
