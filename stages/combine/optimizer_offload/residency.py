"""What is placed in a schedule, and why it may not be."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from itertools import accumulate, pairwise

from tightfit.schemas.optimizer_plan import OptimizerPlan
from tightfit.stages.combine.optimizer_offload.activation_schedule import ActivationSchedule


@dataclass(frozen=True)
class ResidencyWindow:
    """Steps from `first` to `last` for which a parameter (a storage) is on the device; -1 for one
    that is there when the step begins, the number of steps for one that stays."""

    storage: int
    first: int
    last: int


@dataclass(frozen=True)
class PlacementRequest:
    """Which parameters are where: `updates` as the simulator takes them, the `here` that are
    updated on the device, and the windows in which those of the offload target are on the device,
    by first step. `room` are the bytes of the device for all of it."""

    updates: OptimizerPlan
    here: frozenset[int]
    windows: list[ResidencyWindow]
    room: int
    slack: float
    margin: int


class PlacementMemoryError(Exception):
    """There is no room at some step; `step` is its position and `needed` the bytes of the device,
    or of the offload target where that is `away`."""

    def __init__(self, step: int, needed: int, away: bool = False) -> None:
        super().__init__(step, needed, away)
        self.step = step
        self.needed = needed
        self.away = away


class PlacementTimeError(Exception):
    """A plan takes longer than what was asked for."""


def residency_windows(
    base: ActivationSchedule,
    remote: Mapping[int, int],
    there: Collection[int],
    here: Collection[int],
    stays: Collection[int],
    room: int,
    seconds_of: Mapping[int, float],
    bridged: bool = True,
) -> list[ResidencyWindow]:
    """The windows of all parameters `remote` (by storage), by first step.

    One is on the device at each step that reads it; where it is updated `here`, until its gradient
    is whole; where it is `there`, from the beginning on, and to the end where it `stays`. It
    stays between two of them where bringing it again (`seconds_of`) takes longer than that, if such
    gaps are `bridged`, and where the device has `room` for it beside those that are there when the
    step begins, in bytes, the shortest gaps first.
    """
    graph, end = base.graph, len(base)
    clock = [0.0, *accumulate(base.seconds)]
    line = base.peak.copy()
    spans: dict[int, list[tuple[int, int]]] = {}
    gaps: list[tuple[float, int, int, int]] = []
    for storage, value in remote.items():
        uses = list(base.reading_steps.get(storage, []))
        if value in here:
            uses.append(base.gradient_steps[value])
        uses += [end] if value in stays else []
        uses = sorted({*uses, *([-1] if value in there else [])})
        spans[storage] = [(use, use) for use in uses]
        for use in uses:
            line[max(use, 0)] += graph.storages[storage]
        for first, second in pairwise(uses):
            gap = clock[min(second, end)] - clock[max(first, 0)]
            gaps.append((gap, storage, first, second))
    kept: set[tuple[int, int]] = set()
    for gap, storage, first, second in sorted(gaps, key=lambda each: (each[2] >= 0, each)):
        size = graph.storages[storage]
        inside = line[max(first, 0) + 1 : second]
        short = bridged and gap <= 2 * seconds_of[storage]
        if first < 0 or short or not len(inside) or int(inside.max()) + size <= room:
            inside += size
            kept.add((storage, first))
    found = [
        window for storage, own in spans.items() for window in _merge_windows(storage, own, kept)
    ]
    return sorted(found, key=lambda window: (window.first, window.last))


def _merge_windows(
    storage: int, spans: list[tuple[int, int]], kept: set[tuple[int, int]]
) -> list[ResidencyWindow]:
    """The windows of a parameter, those on both sides of a kept gap as one."""
    windows: list[ResidencyWindow] = []
    for first, last in spans:
        if windows and (storage, windows[-1].last) in kept:
            windows[-1] = ResidencyWindow(storage, windows[-1].first, last)
        else:
            windows.append(ResidencyWindow(storage, first, last))
    return windows
