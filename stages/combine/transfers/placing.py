"""From a sequence of nodes and what shall leave to a plan with transfers, within a budget."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from tightfit.schemas.actions import Action, Free, Offload, Prefetch
from tightfit.schemas.link import HostLink
from tightfit.schemas.problem import Problem
from tightfit.stages.combine.offload.gaps import Computation, Gap
from tightfit.stages.combine.offload.placing import Sent, Stay, first_made_first, sends, stays
from tightfit.stages.combine.offload.plans import capped
from tightfit.stages.combine.polish.views import Views, no_views
from tightfit.stages.combine.schedule.executions import runs
from tightfit.stages.replay.line import Execution, executions
from tightfit.stages.replay.link_lanes import LinkLanes


@dataclass(frozen=True)
class Clocks:
    """When all lanes are through (`seconds`), the `most` bytes in the other memory, when each run
    begins, when what leaves has been `sent`, and what computations are busy with for the `overhead`
    of transfers."""

    seconds: float
    overhead: float
    most: int
    begins: list[float]
    sent: dict[tuple[bool, int], float]


@dataclass(frozen=True)
class Placed:
    """A sequence of node positions with the stays of what leaves and the order in which it is sent;
    the clocks of the lanes, and the seconds for which computations or the end of the step `waited`
    for transfers."""

    sequence: list[int]
    stays: list[Stay]
    order: list[Sent]
    clocks: Clocks
    waited: float
    ceiling: int

    @property
    def seconds(self) -> float:
        """The seconds that the lanes take, but for views that every plan makes once."""
        return self.clocks.seconds


class Placer:
    """Places transfers of one problem over one link; `leaving` are the storages that may leave,
    with the values by which they do. What leaves is freed as late as the budget allows, or `early`:
    once it has been sent, by the clocks. Without `views` these take no time."""

    def __init__(
        self,
        problem: Problem,
        link: HostLink,
        leaving: Mapping[int, int],
        early: bool = False,
        views: Views | None = None,
    ) -> None:
        self.problem = problem
        self.views = views or no_views(problem)
        self.link = link
        self.leaving = leaving
        self.early = early

    def place(
        self, sequence: Sequence[int], back: Collection[tuple[int, int]] | None, budget: int
    ) -> Placed | None:
        """The fastest placing found of what shall leave within the budget in bytes, None where
        there is none. `back` are storages with the places ahead of which they come back; more leave
        where these are too few."""
        played = executions(self.problem, sequence, in_place=True, ceiling=budget)
        computed = self._computation(played)
        chosen = capped(computed, _chosen(computed.gaps, back or ()), budget)
        if chosen is None:
            return None
        order = first_made_first(chosen)
        found = [
            stays(computed, chosen, budget, turn, wide, order)
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
        self, sequence: Sequence[int], found: list[Stay], order: list[Sent], budget: int
    ) -> Placed | None:
        """The plan with these stays, or with earlier frees (`early`) where that is as fast; None
        where the other memory is too small or the budget in bytes is exceeded."""
        placed = self._timed(sequence, found, order, budget)
        if placed is None or not self.early:
            return placed
        early = self._timed(sequence, self._freed_early(placed), order, budget)
        return placed if early is None or early.seconds > placed.seconds else early

    def _fastest_first(
        self, found: Sequence[list[Stay]], order: list[Sent], computed: Computation
    ) -> list[list[Stay]]:
        """Different stays by the time that they take."""
        known: dict[tuple[tuple[int, int], ...], list[Stay]] = {}
        for each in found:
            known.setdefault(tuple((stay.out, stay.back) for stay in each), each)
        seconds = {
            key: self._clocks(computed.seconds, each, order).seconds for key, each in known.items()
        }
        return [known[key] for key in sorted(known, key=seconds.__getitem__)]

    def _timed(
        self, sequence: Sequence[int], found: list[Stay], order: list[Sent], budget: int
    ) -> Placed | None:
        """A placing with its time, None where the other memory is too small, the budget is
        exceeded, or it takes for ever."""
        moved: dict[int, int] = {}
        for stay in found:
            moved[stay.out] = moved.get(stay.out, 0) - stay.gap.size
            moved[stay.back] = moved.get(stay.back, 0) + stay.gap.size
        played = executions(self.problem, sequence, True, budget, moved)
        if max(run.peak for run in played) > budget:
            return None
        own = self._seconds(played)
        clocks = self._clocks(own, found, order)
        if clocks.most > self.link.room or not math.isfinite(clocks.seconds):
            return None
        waited = clocks.seconds - clocks.overhead - sum(own)
        return Placed(list(sequence), found, order, clocks, waited, budget)

    def _freed_early(self, placed: Placed) -> list[Stay]:
        """The stays, each from where its transfer has ended without a wait."""
        begins, sent = placed.clocks.begins, placed.clocks.sent
        found = []
        for stay in placed.stays:
            first = bisect_left(begins, sent[stay.gap.store], lo=stay.gap.first, hi=stay.out)
            found.append(replace(stay, out=min(first, stay.out)))
        return found

    def actions(self, placed: Placed) -> list[Action]:
        """The actions of a plan."""
        ops = [self.problem.nodes[node].op for node in placed.sequence]
        plain = runs(self.problem, ops)
        before, after = _events(placed.stays, placed.order)
        steps: list[Action] = []
        for place in range(len(plain) + 1):
            for stay, comes in before.get(place, []):
                value = self.leaving[stay.gap.store[1]]
                steps.append(Prefetch(value) if comes else Free(value))
            steps += plain[place : place + 1]
            steps += [Offload(self.leaving[store[1]]) for _, store in after.get(place, [])]
        return steps

    def _clocks(self, seconds: Sequence[float], found: Sequence[Stay], order: list[Sent]) -> Clocks:
        """The clocks of the lanes; `seconds` are those of the runs."""
        before, after = _events(found, order)
        link, sizes = self.link, self.problem.storages
        awaited: dict[int, list[Stay]] = {}
        left: dict[tuple[bool, int], int] = {}
        for stay in found:
            awaited.setdefault(stay.gap.last + 1, []).append(stay)
            left[stay.gap.store] = left.get(stay.gap.store, 0) + 1
        clock, overhead, lanes = 0.0, 0.0, LinkLanes(link)
        sent: dict[tuple[bool, int], float] = {}
        # By the identity of a stay: its hash takes as long as all else of a transfer.
        comes: dict[int, float] = {}
        begins: list[float] = []
        other = most = 0

        def transfer(size: int, leaves: bool) -> float:
            nonlocal clock, overhead
            clock += link.overhead_of(size)
            overhead += link.overhead_of(size)
            return lanes.begin(leaves, clock, link.seconds(size))[1]

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
        return Clocks(lanes.through(clock), overhead, most, begins, sent)

    def _seconds(self, played: Sequence[Execution]) -> list[float]:
        """What each run takes, with the views that are made for it."""
        if not any(self.views.seconds):
            return [run.seconds for run in played]
        viewed = self.views.of_runs(self.problem, [run.node for run in played])
        return [run.seconds + views for run, views in zip(played, viewed, strict=True)]

    def _computation(self, played: Sequence[Execution]) -> Computation:
        """The runs as planners of chains with a link see them: what each needs, and the gaps."""
        gaps: list[Gap] = []
        made: dict[int, int] = {}
        used: dict[int, int] = {}
        for place, run in enumerate(played):
            for storage in run.form.inputs:
                if storage in self.leaving and used[storage] + 1 < place:
                    size = self.problem.storages[storage].bytes
                    first = used[storage] + 1
                    gaps.append(Gap((False, storage), size, made[storage], first, place - 1))
                used[storage] = place
            for storage in run.form.outputs:
                made[storage] = used[storage] = place
        turn = next(i for i, run in enumerate(played) if run.node == self.problem.loss)
        gaps.sort(key=lambda gap: (gap.first, gap.made, gap.store))
        needs, seconds = [run.peak for run in played], self._seconds(played)
        return Computation([], needs, seconds, turn, gaps)


def _chosen(gaps: Iterable[Gap], back: Collection[tuple[int, int]]) -> list[Gap]:
    """The gaps within which something comes back."""
    places: dict[int, list[int]] = {}
    for storage, place in back:
        places.setdefault(storage, []).append(place)
    return [
        gap
        for gap in gaps
        if any(gap.first <= place <= gap.last + 1 for place in places.get(gap.store[1], ()))
    ]


def _events(
    found: Iterable[Stay], order: list[Sent]
) -> tuple[dict[int, list[tuple[Stay, bool]]], dict[int, list[Sent]]]:
    """By run, what is freed (False) and then comes back (True) ahead of it, that which is needed
    first first; and what is sent after it."""
    before: dict[int, list[tuple[Stay, bool]]] = {}
    stays_of = list(found)
    for stay in stays_of:
        before.setdefault(stay.out, []).append((stay, False))
    for stay in sorted(stays_of, key=lambda stay: stay.gap.last):
        before.setdefault(stay.back, []).append((stay, True))
    for events in before.values():
        events.sort(key=lambda event: event[1])
    gone = {(stay.gap.made, stay.gap.store) for stay in stays_of}
    after: dict[int, list[Sent]] = {}
    for what, place in sends([what for what in order if what in gone]).items():
        after.setdefault(place, []).append(what)
    return before, after
