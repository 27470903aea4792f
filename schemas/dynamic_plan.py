"""What plans and measurements say of calls of several sizes."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tightfit.schemas.graph.dynamic_inputs import DimensionLimits, DynamicDimension, describe_sizes
from tightfit.util.errors import ArtifactError


@dataclass(frozen=True)
class SizePeak:
    """The bytes of a step, as `Plan.peak` counts them, at some sizes, by the names of
    dimensions."""

    sizes: dict[str, int]
    peak: int


@dataclass(frozen=True)
class SmallSizesPlan:
    """A second plan for calls of at most these `sizes`, by the names of dimensions: its bytes and
    seconds at these, and the seconds that the first plan would take (`first_time`)."""

    sizes: dict[str, int]
    peak: int
    time: float
    first_time: float


@dataclass(frozen=True)
class DynamicPlan(DimensionLimits):
    """The `dimensions` whose sizes differ from call to call, and the `peaks` at sizes other than
    the largest, of which all other figures of a plan are; none where nothing is known of them.
    Calls of a small size may have a second plan.

    Example:
        >>> plan.dynamic.describe()
        'batch from 2 to 8, tokens from 2 to 1024'
    """

    dimensions: list[DynamicDimension]
    peaks: list[SizePeak]
    small: SmallSizesPlan | None = None

    def describe_small(self) -> str:
        """The calls that the second plan takes, for people; "" where there is none.

        Example:
            >>> plan.dynamic.describe_small()
            'calls with tokens up to 512'
        """
        if self.small is None:
            return ""
        ends = self.largest
        limits = [f"{name} up to {n}" for name, n in self.small.sizes.items() if n < ends[name]]
        return f"calls with {' and '.join(limits)}"


@dataclass(frozen=True)
class SizeMeasurement:
    """What was found at some sizes: whether not one bit differs from eager at these, and the bytes
    of the step, predicted and measured; None where they are not known."""

    sizes: dict[str, int]
    bits_equal: bool
    predicted_peak: int | None
    measured_peak: int | None

    def describe(self) -> str:
        """The sizes, for people."""
        return describe_sizes(self.sizes)


def parse_dynamic_plan(document: Any, where: str) -> DynamicPlan:
    """Those of a JSON document; raises ArtifactError, naming `where`, where it holds others."""
    try:
        dimensions = [DynamicDimension(**one) for one in document["dimensions"]]
        peaks = [SizePeak(**one) for one in document["peaks"]]
        limits = [(one.name, one.smallest, one.largest) for one in dimensions]
        figures = [number for _, *range_ in limits for number in range_]
        figures += [number for one in peaks for number in (*one.sizes.values(), one.peak)]
        small = document["small"]
        second = [] if small is None else [SmallSizesPlan(**small)]
        figures += [number for one in second for number in (*one.sizes.values(), one.peak)]
        times = [time for one in second for time in (one.time, one.first_time)]
        sound = all(type(name) is str for name, *_ in limits) and all(map(_is_size, figures))
        sound = sound and all(type(time) in (int, float) and 0 <= time < math.inf for time in times)
        sound = sound and len(document) == 3
        sized: list[SizePeak | SmallSizesPlan] = [*peaks, *second]
        sound = sound and all(set(one.sizes) == {name for name, *_ in limits} for one in sized)
    except (KeyError, TypeError, AttributeError):
        sound = False
    if not sound:
        raise ArtifactError(f"{where}: dynamic does not hold dimensions and peaks")
    return DynamicPlan(dimensions, peaks, *second)


def encode_size_measurements(measured: Sequence[SizeMeasurement]) -> str:
    """Measurements of sizes as text."""
    return json.dumps([asdict(one) for one in measured], separators=(",", ":"))


def decode_size_measurements(text: str, where: str) -> tuple[SizeMeasurement, ...]:
    """Measurements of sizes of a text; raises ArtifactError, naming `where`, if there are none."""
    try:
        found = tuple(SizeMeasurement(**one) for one in json.loads(text))
        peaks = [peak for one in found for peak in (one.predicted_peak, one.measured_peak)]
        sound = all(
            isinstance(one.sizes, Mapping)
            and all(map(_is_size, one.sizes.values()))
            and type(one.bits_equal) is bool
            for one in found
        ) and all(peak is None or _is_size(peak) for peak in peaks)
    except (ValueError, TypeError, RecursionError):
        sound = False
    if not sound:
        raise ArtifactError(f"{where}: the metadata does not hold measurements of sizes")
    return found


def _is_size(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**63
