"""From a sequence of nodes and what shall leave to a plan with transfers, within a budget."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from tightfit.schemas.actions import Action, Free, Offload, Prefetch
from tightfit.schemas.graph.planning_graph import PlanningGraph
from tightfit.schemas.graph.training_graph import LOSS_TARGET, NO_VALUE, Graph, GraphValue
from tightfit.schemas.link import HostLink
from tightfit.stages.combine.chain_offload.placement import (
    ComputeSequence,
    IdleInterval,
    OffloadedStore,
    OffloadInterval,
    offload_steps,
    order_by_production,
    place_offload_intervals,
)
from tightfit.stages.combine.chain_offload.planner import add_intervals_to_fit
from tightfit.stages.combine.local_search.views import ViewTimes, untimed_views
from tightfit.stages.combine.lowering.blocks import run_actions
from tightfit.stages.simulate.liveness import Execution, simulate_executions
from tightfit.stages.simulate.transfer_streams import TransferStreams


@dataclass(frozen=True)
class StreamClocks:
    """When all streams are through (`seconds`), the `most` bytes in the offload target, when each
    run begins, when what leaves has been `sent`, and what computations are busy with for the
    `overhead` of transfers."""

    seconds: float
    overhead: float
    most: int
    begins: list[float]
    sent: dict[tuple[bool, int], float]


@dataclass(frozen=True)
class PlacedTransfers:
    """A sequence of node positions with the stays of what leaves and the order in which it is sent;
    the clocks of the streams, and the seconds for which computations or the end of the step
    `waited` for transfers."""

    sequence: list[int]
    stays: list[OffloadInterval]
    order: list[OffloadedStore]
    clocks: StreamClocks
    waited: float
    ceiling: int

    @property
    def seconds(self) -> float:
        """The seconds that the streams take, but for views that every plan makes once."""
        return self.clocks.seconds


class TransferPlacer:
    """Places transfers of one problem over one link; `leaving` are the storages that may leave,
    with the values by which they do. What leaves is freed as late as the budget allows, or `early`:
    once it has been sent, by the clocks. Without `views` these take no time."""

    def __init__(
        self,
        problem: PlanningGraph,
        link: HostLink,
        leaving: Mapping[int, int],
        early: bool = False,
        views: ViewTimes | None = None,
    ) -> None:
        self.problem = problem
        self.views = views or untimed_views(problem)
        self.link = link
        self.leaving = leaving
        self.early = early

    def place(
        self, sequence: Sequence[int], back: Collection[tuple[int, int]] | None, budget: int
    ) -> PlacedTransfers | None:
        """The fastest placing found of what shall leave within the budget in bytes, None where
        there is none. `back` are storages with the places ahead of which they come back; more leave
        where these are too few."""
        played = simulate_executions(self.problem, sequence, in_place=True, ceiling=budget)
        computed = self._computation(played)
        chosen = add_intervals_to_fit(computed, _select_gaps(computed.gaps, back or ()), budget)
        if chosen is None:
            return None
        order = order_by_production(chosen)
        found = [
            place_offload_intervals(computed, chosen, budget, turn, wide, order)
            for turn in (computed.turn, computed.turn - 1)
            for wide in (False, True)
        ]
        for each in self._fastest_first(
            [each for each in found if each is not None], order, computed
        ):
            placed = self.exact(sequence, each, order, budget)
            if placed is not None:
                return placed
        return None

    def exact(
        self,
        sequence: Sequence[int],
        found: list[OffloadInterval],
        order: list[OffloadedStore],
        budget: int,
    ) -> PlacedTransfers | None:
        """The plan with these stays, or with earlier frees (`early`) where that is as fast; None
        where the offload target is too small or the budget in bytes is exceeded."""
        placed = self._timed(sequence, found, order, budget)
        if placed is None or not self.early:
            return placed
        early = self._timed(sequence, self._freed_early(placed), order, budget)
        return placed if early is None or early.seconds > placed.seconds else early

    def _fastest_first(
        self,
        found: Sequence[list[OffloadInterval]],
        order: list[OffloadedStore],
        computed: ComputeSequence,
    ) -> list[list[OffloadInterval]]:
        """Different stays by the time that they take."""
        known: dict[tuple[tuple[int, int], ...], list[OffloadInterval]] = {}
        for each in found:
            known.setdefault(tuple((stay.out, stay.back) for stay in each), each)
        seconds = {
            key: self._clocks(computed.seconds, each, order).seconds for key, each in known.items()
        }
        return [known[key] for key in sorted(known, key=seconds.__getitem__)]

    def _timed(
        self,
        sequence: Sequence[int],
        found: list[OffloadInterval],
        order: list[OffloadedStore],
        budget: int,
    ) -> PlacedTransfers | None:
        """A placing with its time, None where the offload target is too small, the budget is
        exceeded, or it takes for ever."""
        moved: dict[int, int] = {}
        for stay in found:
            moved[stay.out] = moved.get(stay.out, 0) - stay.gap.size
            moved[stay.back] = moved.get(stay.back, 0) + stay.gap.size
        played = simulate_executions(self.problem, sequence, True, budget, moved)
        if max(run.peak for run in played) > budget:
            return None
        own = self._seconds(played)
        clocks = self._clocks(own, found, order)
        if clocks.most > self.link.room or not math.isfinite(clocks.seconds):
            return None
        waited = clocks.seconds - clocks.overhead - sum(own)
        return PlacedTransfers(list(sequence), found, order, clocks, waited, budget)

    def _freed_early(self, placed: PlacedTransfers) -> list[OffloadInterval]:
        """The stays, each from where its transfer has ended without a wait."""
        begins, sent = placed.clocks.begins, placed.clocks.sent
        found = []
        for stay in placed.stays:
            first = bisect_left(begins, sent[stay.gap.store], lo=stay.gap.first, hi=stay.out)
            found.append(replace(stay, out=min(first, stay.out)))
        return found

    def actions(self, placed: PlacedTransfers) -> list[Action]:
        """The actions of a plan."""
        ops = [self.problem.nodes[node].op for node in placed.sequence]
        plain = run_actions(self.problem, ops)
        before, after = _transfer_events(placed.stays, placed.order)
        steps: list[Action] = []
        for place in range(len(plain) + 1):
            for stay, comes in before.get(place, []):
                value = self.leaving[stay.gap.store[1]]
                steps.append(Prefetch(value) if comes else Free(value))
            steps += plain[place : place + 1]
            steps += [Offload(self.leaving[store[1]]) for _, store in after.get(place, [])]
        return steps

    def _clocks(
        self,
        seconds: Sequence[float],
        found: Sequence[OffloadInterval],
        order: list[OffloadedStore],
    ) -> StreamClocks:
        """The clocks of the streams; `seconds` are those of the runs."""
        before, after = _transfer_events(found, order)
        link, sizes = self.link, self.problem.storages
        awaited: dict[int, list[OffloadInterval]] = {}
        left: dict[tuple[bool, int], int] = {}
        for stay in found:
            awaited.setdefault(stay.gap.last + 1, []).append(stay)
            left[stay.gap.store] = left.get(stay.gap.store, 0) + 1
        clock, overhead, streams = 0.0, 0.0, TransferStreams(link)
        sent: dict[tuple[bool, int], float] = {}
        # By the identity of a stay: its hash takes as long as all else of a transfer.
        comes: dict[int, float] = {}
        begins: list[float] = []
        other = most = 0

        def transfer(size: int, leaves: bool) -> float:
            nonlocal clock, overhead
            clock += link.overhead_of(size)
            overhead += link.overhead_of(size)
            return streams.begin(leaves, clock, link.seconds(size))[1]

        for place, own in enumerate(seconds):
            for stay, back in before.get(place, []):
                if back:
                    comes[id(stay)] = transfer(stay.gap.size, False)
                else:
                    clock = max(clock, sent[stay.gap.store])
            for stay in awaited.get(place, []):
                gap = stay.gap
                clock = max(clock, comes[id(stay)])
                left[gap.store] -= 1
                other -= 0 if left[gap.store] else gap.size
            begins.append(clock)
            clock += own
            for _, store in after.get(place, []):
                if store not in sent:
                    size = sizes[store[1]].bytes
                    sent[store] = transfer(size, True)
                    other += size
                    most = max(most, other)
        return StreamClocks(streams.through(clock), overhead, most, begins, sent)

    def _seconds(self, played: Sequence[Execution]) -> list[float]:
        """What each run takes, with the views that are made for it."""
        if not any(self.views.seconds):
            return [run.seconds for run in played]
        viewed = self.views.seconds_by_run(self.problem, [run.node for run in played])
        return [run.seconds + views for run, views in zip(played, viewed, strict=True)]

    def _computation(self, played: Sequence[Execution]) -> ComputeSequence:
        """The runs as planners of chains with a link see them: what each needs, and the gaps."""
        gaps: list[IdleInterval] = []
        made: dict[int, int] = {}
        used: dict[int, int] = {}
        for place, run in enumerate(played):
            for storage in run.form.inputs:
                if storage in self.leaving and used[storage] + 1 < place:
                    size = self.problem.storages[storage].bytes
                    first = used[storage] + 1
                    gaps.append(
                        IdleInterval((False, storage), size, made[storage], first, place - 1)
                    )
                used[storage] = place
            for storage in run.form.outputs:
                made[storage] = used[storage] = place
        turn = next(i for i, run in enumerate(played) if run.node == self.problem.loss)
        gaps.sort(key=lambda gap: (gap.first, gap.made, gap.store))
        needs, seconds = [run.peak for run in played], self._seconds(played)
        return ComputeSequence([], needs, seconds, turn, gaps)


def _select_gaps(
    gaps: Iterable[IdleInterval], back: Collection[tuple[int, int]]
) -> list[IdleInterval]:
    """The gaps within which something comes back."""
    places: dict[int, list[int]] = {}
    for storage, place in back:
        places.setdefault(storage, []).append(place)
    return [
        gap
        for gap in gaps
        if any(gap.first <= place <= gap.last + 1 for place in places.get(gap.store[1], ()))
    ]


def _transfer_events(
    found: Iterable[OffloadInterval], order: list[OffloadedStore]
) -> tuple[dict[int, list[tuple[OffloadInterval, bool]]], dict[int, list[OffloadedStore]]]:
    """By run, what is freed (False) and then comes back (True) ahead of it, that which is needed
    first first; and what is sent after it."""
    before: dict[int, list[tuple[OffloadInterval, bool]]] = {}
    stays_of = list(found)
    for stay in stays_of:
        before.setdefault(stay.out, []).append((stay, False))
    for stay in sorted(stays_of, key=lambda stay: stay.gap.last):
        before.setdefault(stay.back, []).append((stay, True))
    for events in before.values():
        events.sort(key=lambda event: event[1])
    gone = {(stay.gap.made, stay.gap.store) for stay in stays_of}
    after: dict[int, list[OffloadedStore]] = {}
    for what, place in offload_steps([what for what in order if what in gone]).items():
        after.setdefault(place, []).append(what)
    return before, after


def offloadable_values(graph: Graph, problem: PlanningGraph) -> dict[int, int]:
    """By storage that may leave, the value by which it is sent and comes back.

    What the caller holds stays, and so do gradients. A storage is brought back as one value: of one
    that ops made several values in, none but views of each other, nothing is said. A tangent that
    does not lie dense stays: what arrives in its place can be as large as anything.
    """
    whole: dict[int, list[int]] = {}
    for op in graph.ops:
        if graph.is_view(op):
            continue
        for value in op.outputs:
            if value != NO_VALUE and (op.target != LOSS_TARGET or _is_dense(graph.values[value])):
                whole.setdefault(graph.values[value].storage, []).append(value)
    known = range(len(problem.storages))
    return {
        storage: values[0]
        for storage, values in whole.items()
        if storage in known and len(values) == 1 and _may_offload(problem, storage)
    }


def _is_dense(value: GraphValue) -> bool:
    """Whether a value has each element of what it reaches over once."""
    reach = 1
    for stride, size in sorted(zip(value.strides, value.shape, strict=True)):
        if size > 1 and stride != reach:
            return False
        reach *= size
    return True


def _may_offload(problem: PlanningGraph, storage: int) -> bool:
    found = problem.storages[storage]
    return found.producer >= 0 and found.bytes > 0 and not found.stays
