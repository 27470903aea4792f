"""The sizes of a call of a plan with dynamic dimensions, and what the step takes at these."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import le
from typing import Any

import torch

Layout = tuple[tuple[int, ...], tuple[int, ...]]
"""Shape and strides of a tensor, in elements."""


@dataclass(frozen=True)
class SizeRange:
    """A dynamic dimension: calls have a number from `smallest` to `largest`; this axis of the
    tensor at this position has as many elements, times a `factor` and with an `offset`."""

    name: str
    smallest: int
    largest: int
    position: int
    axis: int
    factor: int = 1
    offset: int = 0

    def number(self, size: int) -> int:
        """The number that a size of the axis stands for."""
        return (size - self.offset) // self.factor

    def contains(self, size: int) -> bool:
        """Whether the axis may have this size."""
        number = self.number(size)
        whole = number * self.factor + self.offset == size
        return whole and self.smallest <= number <= self.largest

    def describe(self) -> str:
        """The sizes that the axis may have, for people.

        Example:
            >>> SizeRange("height", 1, 8, 0, 2, 32).describe()
            '32*height from 32 to 256 in steps of 32'
        """
        first, last = (n * self.factor + self.offset for n in (self.smallest, self.largest))
        name = self.name if self.factor == 1 else f"{self.factor}*{self.name}"
        if self.offset:
            name += f" {'+' if self.offset > 0 else '-'} {abs(self.offset)}"
        steps = f" in steps of {self.factor}" if self.factor > 1 else ""
        return f"{name} from {first} to {last}{steps}"


@dataclass(frozen=True)
class SmallSizes:
    """A second plan, for calls whose axes have at most these `sizes`, in the order of the
    dimensions: its interface, of the same tensors, and its step."""

    sizes: tuple[int, ...]
    interface: Any
    step: Any

    def takes(self, sizes: Sequence[int]) -> bool:
        """Whether a call whose axes have these sizes runs this plan."""
        return all(map(le, sizes, self.sizes))


@dataclass(frozen=True)
class DynamicSizes:
    """What differs from call to call. `tensors` and `output_gradients` give, of the sizes of all
    `dimensions` by name, the layouts of the tensors at some positions and of the gradients of the
    outputs with some numbers. Calls of `small` sizes run a second plan, if there is one."""

    dimensions: tuple[SizeRange, ...]
    tensors: Callable[..., dict[int, Layout]]
    output_gradients: Callable[..., dict[int, Layout]]
    small: SmallSizes | None = None

    def read(self, tensors: Sequence[torch.Tensor]) -> tuple[int, ...]:
        """The sizes of the axes of a call. Raises IndexError where a tensor has too few."""
        return tuple([tensors[one.position].shape[one.axis] for one in self.dimensions])

    def difference(self, sizes: Sequence[int], names: Sequence[str]) -> str:
        """Which size is not within its range, as a clause; "" if all are. `names` are those of the
        tensors."""
        for one, size in zip(self.dimensions, sizes, strict=True):
            if not one.contains(size):
                return (
                    f"{names[one.position]} has the size {size} on axis {one.axis}, the plan was "
                    f"made for {one.describe()}"
                )
        return ""

    def describe(self, sizes: Sequence[int]) -> str:
        """The sizes of a call, for people."""
        pairs = zip(self.dimensions, sizes, strict=True)
        return " and ".join(f"{one.name} = {one.number(size)}" for one, size in pairs)

    def named(self, sizes: Sequence[int]) -> dict[str, Any]:
        """The dimensions of a call, whose axes have these sizes, by their names."""
        pairs = zip(self.dimensions, sizes, strict=True)
        return {one.name: one.number(size) for one, size in pairs}
