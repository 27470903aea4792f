"""The peers of the benchmark: eager, checkpointing of every block, the compiler's memory budget."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FunctionType
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


@dataclass(frozen=True)
class Contestant:
    """A module to measure. `budget` is the compiler's activation budget it must be called under,
    None outside the compiler; `predicted_peak` and `predicted_seconds` are a plan's own, and
    `package` is its folder, "" for a peer."""

    name: str
    module: nn.Module
    budget: float | None = None
    predicted_peak: int | None = None
    predicted_seconds: float | None = None
    package: str = ""

    @contextmanager
    def setting(self) -> Iterator[None]:
        """The compiler's setting for the time of a call."""
        if self.budget is None:
            yield
            return
        import torch._functorch.config as functorch

        with functorch.patch(activation_memory_budget=self.budget):
            yield


class _Checkpointed(nn.Module):
    """Runs a block under torch.utils.checkpoint."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.block = block

    def forward(self, *args: Any) -> Any:
        return checkpoint(self.block, *args, use_reentrant=False)


class _Compiled(nn.Module):
    """Runs a model compiled under a name of its own: the compiler keeps what it made by code
    object, and would take what it made for another budget."""

    def __init__(self, model: nn.Module, name: str, backend: str) -> None:
        super().__init__()
        self.model = model

        def call(*args: Any, **kwargs: Any) -> Any:
            return model(*args, **kwargs)

        own = FunctionType(
            call.__code__.replace(co_name=name), call.__globals__, name, None, call.__closure__
        )
        self.run = torch.compile(own, backend=backend)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.run(*args, **kwargs)


def checkpointed(model: nn.Module) -> nn.Module:
    """A copy of a model with every block checkpointed: transformers' own switch, or every
    residual unit of a pytorchcv network."""
    copied = copy.deepcopy(model)
    if hasattr(copied, "gradient_checkpointing_enable"):
        switch: Any = copied.gradient_checkpointing_enable
        switch(gradient_checkpointing_kwargs={"use_reentrant": False})
        return copied
    features: Any = copied.features
    for stage in features.children():
        for name, unit in list(stage.named_children()):
            if name.startswith("unit"):
                setattr(stage, name, _Checkpointed(unit))
    return copied


def peers(model: nn.Module, compiler_budgets: list[float]) -> list[Contestant]:
    """Eager first, then checkpointing, then the compiler at each budget."""
    found = [Contestant("eager", model), Contestant("checkpoint every block", checkpointed(model))]
    for budget in compiler_budgets:
        found.append(compiled(copy.deepcopy(model), budget))
    return found


def compiled(
    model: nn.Module, budget: float, backend: str = "aot_eager_decomp_partition"
) -> Contestant:
    """A model under the compiler at a budget, with eager's kernels unless given another backend."""
    name = f"{backend}_budget_{str(budget).replace('.', '_')}"
    title = "activation_memory_budget" if backend != "inductor" else "torch.compile"
    return Contestant(f"{title} {budget}", _Compiled(model, name, backend), budget)
