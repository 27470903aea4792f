"""Numbers among the arguments of a model that are inputs of its plan, as tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from tightfit.stages.runtime.pytree import flatten, read_tree
from tightfit.stages.torch_utils.model_factory import BuiltModel, Sample


class NumberInput:
    """Stands in a sample for a float that is another one at each call."""

    __slots__ = ("value",)

    def __init__(self, value: float) -> None:
        self.value = value


def number_tensor(value: float) -> torch.Tensor:
    """The tensor that a plan is given for a float: all its digits, and no dimension."""
    return torch.tensor(value, dtype=torch.float64)


def tensors_of_numbers(samples: Sequence[Sample]) -> tuple[list[Sample], tuple[int, ...]]:
    """Samples with tensors in the places of their `NumberInput`s, and the numbers of these leaves
    of (args, kwargs)."""
    found: list[Sample] = []
    places: list[int] = []
    for sample in samples:
        leaves, text = flatten(sample)
        places = [place for place, leaf in enumerate(leaves) if isinstance(leaf, NumberInput)]
        for place in places:
            leaves[place] = number_tensor(leaves[place].value)
        found.append(read_tree(text).unflatten(leaves) if places else sample)
    return found, tuple(places)


def original_of_numbers(built: BuiltModel) -> nn.Module:
    """The model as it is compared with a plan: the tensors that stand for numbers reach it as
    these."""
    if not built.numbers:
        return built.model
    base: Any = type(built.model)

    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        leaves, text = flatten((args, kwargs))
        for place in built.numbers:
            leaves[place] = leaves[place].item()
        args, kwargs = read_tree(text).unflatten(leaves)
        return base.forward(self, *args, **kwargs)

    kind = type(base)(base.__name__, (base,), {"forward": forward})
    original = object.__new__(kind)
    object.__setattr__(original, "__dict__", vars(built.model))
    return original
