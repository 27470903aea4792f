"""The sizes of a call of a plan with dynamic dimensions, and what the step takes at these."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

Layout = tuple[tuple[int, ...], tuple[int, ...]]
"""Shape and strides of a tensor, in elements."""


@dataclass(frozen=True)
class SizeRange:
    """A dynamic dimension: calls have a size from `smallest` to `largest`, on this axis of the
    tensor at this position."""

    name: str
    smallest: int
    largest: int
    position: int
    axis: int


@dataclass(frozen=True)
class DynamicSizes:
    """What differs from call to call. `tensors` and `output_gradients` give, of the sizes of all
    `dimensions` by name, the layouts of the tensors at some positions and of the gradients of the
    outputs with some numbers."""

    dimensions: tuple[SizeRange, ...]
    tensors: Callable[..., dict[int, Layout]]
    output_gradients: Callable[..., dict[int, Layout]]

    def read(self, tensors: Sequence[torch.Tensor]) -> tuple[int, ...]:
        """The sizes of a call. Raises IndexError where a tensor has too few dimensions."""
        return tuple([tensors[one.position].shape[one.axis] for one in self.dimensions])

    def difference(self, sizes: Sequence[int], names: Sequence[str]) -> str:
        """Which size is not within its range, as a clause; "" if all are. `names` are those of the
        tensors."""
        for one, size in zip(self.dimensions, sizes, strict=True):
            if not one.smallest <= size <= one.largest:
                return (
                    f"{names[one.position]} has the size {size} on axis {one.axis}, the plan was "
                    f"made for {one.name} from {one.smallest} to {one.largest}"
                )
        return ""

    def describe(self, sizes: Sequence[int]) -> str:
        """The sizes of a call, for people."""
        pairs = zip(self.dimensions, sizes, strict=True)
        return " and ".join(f"{one.name} = {size}" for one, size in pairs)

    def named(self, sizes: Sequence[int]) -> dict[str, Any]:
        """The sizes of a call by their names."""
        return {one.name: size for one, size in zip(self.dimensions, sizes, strict=True)}
