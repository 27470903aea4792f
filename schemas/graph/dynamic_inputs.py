"""Which sizes of a model's inputs differ from call to call, and between which limits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

SMALLEST_SIZE = 2
"""Sizes 0 and 1 are those of other programs: operators broadcast, or have nothing to do."""
_BETWEEN = (0.5, 0.29, 0.83)
"""Where, within each range, sizes between the limits are compared."""


@dataclass(frozen=True)
class DynamicDimension:
    """A number that calls choose, from `smallest` to `largest`, both included."""

    name: str
    smallest: int
    largest: int


class DimensionLimits:
    """What has `dimensions`, with their limits."""

    dimensions: Sequence[DynamicDimension]
    small_sizes: Mapping[str, int] = MappingProxyType({})
    """The largest sizes of the calls that a second plan may take, by name; empty for one plan."""

    def describe(self) -> str:
        """The ranges, for people.

        Example:
            >>> graph.dynamic.describe()
            'batch from 2 to 8, tokens from 2 to 1024'
        """
        return ", ".join(
            f"{one.name} from {one.smallest} to {one.largest}" for one in self.dimensions
        )

    @property
    def largest(self) -> dict[str, int]:
        """The largest sizes, by name."""
        return {one.name: one.largest for one in self.dimensions}

    @property
    def smallest(self) -> dict[str, int]:
        """The smallest sizes, by name."""
        return {one.name: one.smallest for one in self.dimensions}

    def checked_sizes(self) -> list[dict[str, int]]:
        """The sizes beside the largest at which a plan is compared with its model: the smallest,
        and three between, each once, even and odd ones, and the largest of a second plan."""
        found = [self.smallest]
        for fraction in _BETWEEN:
            found.append(
                {
                    one.name: one.smallest + int(fraction * (one.largest - one.smallest))
                    for one in self.dimensions
                }
            )
        for one in self.dimensions:
            if len({sizes[one.name] % 2 for sizes in (*found, self.largest)}) == 1:
                found[-1][one.name] = min(found[-1][one.name] + 1, one.largest)
        found += [dict(self.small_sizes)] if self.small_sizes else []
        found = [sizes for number, sizes in enumerate(found) if sizes not in found[:number]]
        return [sizes for sizes in found if sizes != self.largest]


@dataclass(frozen=True)
class DynamicInputs(DimensionLimits):
    """The `dimensions` of a plan, and where inputs have them: by the number of a leaf of
    (args, kwargs), axes with their size, the name of a dimension or an expression of one. There
    are at most so many `plans`: with two, one for calls of up to half of a dimension's range.

    Example:
        >>> tokens = DynamicDimension("tokens", 2, 1024)
        >>> DynamicInputs((tokens,), {0: {1: "tokens"}, 1: {1: "2*tokens"}})
    """

    dimensions: tuple[DynamicDimension, ...]
    axes: Mapping[int, Mapping[int, str]] = field(default_factory=dict)
    plans: int = 1

    def dimension(self, name: str) -> DynamicDimension:
        """The dimension of a name."""
        return next(one for one in self.dimensions if one.name == name)


def describe_sizes(sizes: Mapping[str, int]) -> str:
    """Sizes by the names of dimensions, for people: "batch = 2, tokens = 7"."""
    return ", ".join(f"{name} = {size}" for name, size in sizes.items())


def lie_within(sizes: Mapping[str, int], largest: Mapping[str, int]) -> bool:
    """Whether no size is above the largest one of its name."""
    return all(sizes[name] <= size for name, size in largest.items())
