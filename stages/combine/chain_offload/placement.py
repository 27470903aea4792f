"""The gaps of a sequence without transfers: when is something stored that nothing uses?"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from itertools import accumulate

from tightfit.schemas.sequence import ChainOperation, StoredItem, iterate_with_next, move_operation
from tightfit.stages.combine.chain.options import ChainProblem
from tightfit.stages.combine.chain.simulate import ChainSimulator


@dataclass(frozen=True)
class IdleInterval:
    """What is stored from step `made` on (-1: from the beginning), `size` bytes, and not used by
    any of the steps `first` .. `last`, but before and after them."""

    store: StoredItem
    size: int
    made: int
    first: int
    last: int


@dataclass(frozen=True)
class ComputeSequence:
    """A sequence without transfers: the bytes that each step `needs` in all, its `seconds`, the
    first step after the forwards (`turn`, the backward of the loss), and its gaps in the order in
    which they begin."""

    steps: list[ChainOperation]
    needs: list[int]
    seconds: list[float]
    turn: int
    gaps: list[IdleInterval]

    @property
    def peak(self) -> int:
        """The most bytes of any step."""
        return max(self.needs)


def analyze_compute_sequence(
    ways: ChainProblem, sequence: Iterable[ChainOperation]
) -> ComputeSequence:
    """Plays a sequence and looks for its gaps; the loss is played as a forward and a backward.

    Raises ScheduleError where the sequence is not valid.
    """
    steps = split_loss(sequence)
    watched = _IntervalRecorder(ways)
    needs, seconds = [], []
    for index, step, following in iterate_with_next(steps):
        before, watched.peak = watched.seconds, 0
        watched.index = index
        watched.play(index, step, following)
        watched.look()
        needs.append(max(watched.peak, watched.stored + watched.delta()))
        seconds.append(watched.seconds - before)
    last = ways.loss_position
    turn = steps.index(ChainOperation("B", last))
    gaps = sorted(watched.gaps, key=lambda gap: (gap.first, gap.made, gap.store))
    return ComputeSequence(steps, needs, seconds, turn, gaps)


def split_loss(sequence: Iterable[ChainOperation]) -> list[ChainOperation]:
    """The sequence with the loss as a forward and a backward, so that transfers fit between."""
    steps: list[ChainOperation] = []
    for action in sequence:
        if action.action == "loss":
            steps += [ChainOperation("F_all", action.block), ChainOperation("B", action.block)]
        else:
            steps.append(action)
    return steps


def merge_loss(sequence: Sequence[ChainOperation], loss: int) -> list[ChainOperation]:
    """The sequence with the loss in one where nothing is between its forward and its backward."""
    steps: list[ChainOperation] = []
    for action in sequence:
        if (
            steps
            and action == ChainOperation("B", loss)
            and steps[-1] == ChainOperation("F_all", loss)
        ):
            steps[-1] = ChainOperation("loss", loss)
        else:
            steps.append(action)
    return steps


class _IntervalRecorder(ChainSimulator):
    """A player that notes when what is stored was made and last used."""

    def __init__(self, ways: ChainProblem) -> None:
        super().__init__(ways)
        self.index = -1
        self.made: dict[StoredItem, int] = {(False, 0): -1}
        self.used: dict[StoredItem, int] = {(False, 0): -1}
        self.gaps: list[IdleInterval] = []

    def look(self) -> None:
        """Notes what a step made and what it ended."""
        there = {(False, position) for position in self.outputs}
        there |= {(True, position) for position in self.kept}
        for store in there - set(self.made):
            self.made[store] = self.used[store] = self.index
        for store in set(self.made) - there:
            if self.used[store] != self.index:
                self._uses(store)
            del self.made[store], self.used[store]

    def _uses(self, store: StoredItem) -> None:
        first, last = self.used[store] + 1, self.index - 1
        if first <= last:
            self.gaps.append(IdleInterval(store, self.size(store), self.made[store], first, last))
        self.used[store] = self.index

    def _reads(self, where: str, position: int, plain: bool) -> None:
        super()._reads(where, position, plain)
        output, kept = (False, position - 1), (True, position - 1)
        self._uses(output if output in self.made else kept)

    def _backward(self, position: int, where: str) -> None:
        if (True, position) in self.made:
            self._uses((True, position))
        super()._backward(position, where)


OffloadedStore = tuple[int, StoredItem]
"""The step that made what is sent, and what that is."""


@dataclass(frozen=True)
class OffloadInterval:
    """A gap of which what is stored is gone: freed before the step `out` and back before the step
    `back`."""

    gap: IdleInterval
    out: int
    back: int


def order_by_production(gaps: Iterable[IdleInterval]) -> list[OffloadedStore]:
    """What leaves, in the order in which it is made."""
    chosen = sorted(gaps, key=lambda gap: (gap.made, gap.first))
    return list(dict.fromkeys((gap.made, gap.store) for gap in chosen))


def offload_steps(order: Iterable[OffloadedStore]) -> dict[OffloadedStore, int]:
    """After which step each is sent: when it is made, or once all before it in the order are."""
    last, found = -1, {}
    for sent in order:
        last = max(last, sent[0])
        found[sent] = last
    return found


def place_offload_intervals(
    computed: ComputeSequence,
    gaps: Iterable[IdleInterval],
    budget: int,
    turn: int,
    wide: bool,
    order: Sequence[OffloadedStore],
) -> list[OffloadInterval] | None:
    """The places of the gaps, those left out that need not leave; None where the budget is too
    small. Offloads have first choice before the step `turn`, prefetches after it; with `wide` what
    is free on the other side is used too, so that transfers may wait there as well. What is sent
    later in the `order` than it is made is there until then."""
    chosen = _clip_to_order(gaps, order)
    slack = _slack(computed, chosen, budget)
    if min(slack) < 0:
        return None
    out = _place_frees(chosen, slack, turn)
    back = _place_prefetches(chosen, slack, turn)
    for place, gap in enumerate(chosen) if wide else ():
        if place in out and back[place] == max(turn, gap.first) and gap.last >= turn:
            back[place] = _advance_prefetch(gap, slack, out[place], min(turn, back[place]))
    for place, gap in enumerate(chosen):
        if place not in out:
            out[place] = _delay_free(gap, slack, max(turn, gap.first), back[place])
    return [
        OffloadInterval(gap, out[place], back[place])
        for place, gap in enumerate(chosen)
        if out[place] < back[place]
    ]


def insert_transfers(
    computed: ComputeSequence,
    found: Sequence[OffloadInterval],
    loss: int,
    order: Sequence[OffloadedStore],
) -> list[ChainOperation]:
    """The sequence with its transfers."""
    frees: dict[int, list[ChainOperation]] = {}
    fetches: dict[int, list[tuple[int, ChainOperation]]] = {}
    leaving = {(stay.gap.made, stay.gap.store) for stay in found}
    sent: dict[int, list[ChainOperation]] = {}
    for what, step in offload_steps([what for what in order if what in leaving]).items():
        sent.setdefault(step, []).append(move_operation("offload", what[1]))
    for stay in found:
        gap = stay.gap
        frees.setdefault(stay.out, []).append(move_operation("free", gap.store))
        fetch = move_operation("prefetch", gap.store)
        fetches.setdefault(stay.back, []).append((gap.last, fetch))
    steps: list[ChainOperation] = []
    for index in range(-1, len(computed.steps)):
        if index >= 0:
            steps += frees.get(index, [])
            steps += [fetch for _, fetch in sorted(fetches.get(index, []), key=lambda f: f[0])]
            steps.append(computed.steps[index])
        steps += sent.get(index, [])
    return merge_loss(steps, loss)


def _clip_to_order(
    gaps: Iterable[IdleInterval], order: Sequence[OffloadedStore]
) -> list[IdleInterval]:
    """The gaps in which something is gone, each from when it has been sent."""
    places = {sent: place for place, sent in enumerate(order)}
    when = offload_steps(order)

    def cut(gap: IdleInterval) -> IdleInterval:
        first = when[gap.made, gap.store] + 1
        return gap if first <= gap.first else replace(gap, first=first)

    chosen = sorted(gaps, key=lambda gap: (places[gap.made, gap.store], gap.first))
    return [gap for gap in map(cut, chosen) if gap.first <= gap.last]


def _slack(computed: ComputeSequence, chosen: Iterable[IdleInterval], budget: int) -> list[int]:
    """The bytes that each step leaves of the budget where all gaps are gone."""
    changes = [0] * (len(computed.needs) + 1)
    for gap in chosen:
        changes[gap.first] += gap.size
        changes[gap.last + 1] -= gap.size
    gone = accumulate(changes[:-1])
    return [budget - need + more for need, more in zip(computed.needs, gone, strict=True)]


def _place_frees(chosen: Sequence[IdleInterval], slack: list[int], turn: int) -> dict[int, int]:
    """The steps before which gaps, by place, are freed, of those that have to before `turn`; the
    bytes that stay until then are taken from `slack`."""
    out: dict[int, int] = {}
    waiting: list[int] = []
    begins, ends = _group_by_step(chosen, first=True), _group_by_step(chosen, first=False)
    size = 0
    for step in range(turn):
        for place in ends.get(step - 1, ()):
            size -= 0 if place in out else chosen[place].size
        for place in begins.get(step, ()):
            heappush(waiting, place)
            size += chosen[place].size
        while size > slack[step]:
            place = heappop(waiting)
            if chosen[place].last >= step:
                out[place] = step
                size -= chosen[place].size
        slack[step] -= size
    return out


def _place_prefetches(chosen: Sequence[IdleInterval], slack: list[int], turn: int) -> list[int]:
    """The steps before which gaps are back; what is back from then on is taken from `slack`."""
    back = [gap.last + 1 if gap.last < turn else max(turn, gap.first) for gap in chosen]
    waiting: deque[int] = deque()
    begins, ends = _group_by_step(chosen, first=True), _group_by_step(chosen, first=False)
    late: set[int] = set()
    size = 0
    for step in range(len(slack) - 1, turn - 1, -1):
        for place in begins.get(step + 1, ()):
            size -= 0 if place in late else chosen[place].size
        for place in ends.get(step, ()):
            waiting.append(place)
            size += chosen[place].size
        while size > slack[step]:
            place = waiting.popleft()
            if chosen[place].first <= step:
                late.add(place)
                back[place] = step + 1
                size -= chosen[place].size
        slack[step] -= size
    return back


def _group_by_step(chosen: Iterable[IdleInterval], first: bool) -> dict[int, list[int]]:
    """The places of gaps by the first step of each, or the last."""
    found: dict[int, list[int]] = {}
    for place, gap in enumerate(chosen):
        found.setdefault(gap.first if first else gap.last, []).append(place)
    return found


def _advance_prefetch(gap: IdleInterval, slack: list[int], lowest: int, back: int) -> int:
    """How much earlier than before the step `back` a gap can come back."""
    while back > lowest and slack[back - 1] >= gap.size:
        back -= 1
        slack[back] -= gap.size
    return back


def _delay_free(gap: IdleInterval, slack: list[int], out: int, back: int) -> int:
    """How much later than before the step `out` a gap can be freed."""
    while out < back and slack[out] >= gap.size:
        slack[out] -= gap.size
        out += 1
    return out
