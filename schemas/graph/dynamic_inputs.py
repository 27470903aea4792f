"""Which sizes of a model's inputs differ from call to call, and between which limits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class DynamicDimension:
    """A size that calls choose, from `smallest` to `largest`, both included."""

    name: str
    smallest: int
    largest: int


class DimensionLimits:
    """What has `dimensions`, with their limits."""

    dimensions: Sequence[DynamicDimension]

    @property
    def largest(self) -> dict[str, int]:
        """The largest sizes, by name."""
        return {one.name: one.largest for one in self.dimensions}

    @property
    def smallest(self) -> dict[str, int]:
        """The smallest sizes, by name."""
        return {one.name: one.smallest for one in self.dimensions}


@dataclass(frozen=True)
class DynamicInputs(DimensionLimits):
    """The `dimensions` of a plan, and where inputs have them: by the number of a leaf of
    (args, kwargs), axes with the name of the dimension there.

    Example:
        >>> tokens = DynamicDimension("tokens", 2, 1024)
        >>> DynamicInputs((tokens,), {0: {1: "tokens"}, 1: {1: "tokens"}})
    """

    dimensions: tuple[DynamicDimension, ...]
    axes: Mapping[int, Mapping[int, str]] = field(default_factory=dict)

    def dimension(self, name: str) -> DynamicDimension:
        """The dimension of a name."""
        return next(one for one in self.dimensions if one.name == name)
