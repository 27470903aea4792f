"""Where transfers are issued: the places of what leaves and comes back, within a budget.

What leaves is sent when it is made, or in another order, and freed as late as the budget allows,
first sent first; what comes back is fetched as early as the budget allows, last needed last. So the
lanes have the most time (S Proposition 1: offloads as early and prefetches as late as possible need
the least memory, and by the law of lanes a place is all that counts).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from itertools import accumulate

from tightfit.schemas.sequence import Operation, Store, moving
from tightfit.stages.combine.offload.gaps import Computation, Gap, together

Sent = tuple[int, Store]
"""The step that made what is sent, and what that is."""


@dataclass(frozen=True)
class Stay:
    """A gap of which what is stored is gone: freed before the step `out` and back before the step
    `back`."""

    gap: Gap
    out: int
    back: int


def first_made_first(gaps: Iterable[Gap]) -> list[Sent]:
    """What leaves, in the order in which it is made."""
    chosen = sorted(gaps, key=lambda gap: (gap.made, gap.first))
    return list(dict.fromkeys((gap.made, gap.store) for gap in chosen))


def sends(order: Iterable[Sent]) -> dict[Sent, int]:
    """After which step each is sent: when it is made, or once all before it in the order are."""
    last, found = -1, {}
    for sent in order:
        last = max(last, sent[0])
        found[sent] = last
    return found


def stays(
    computed: Computation,
    gaps: Iterable[Gap],
    budget: int,
    turn: int,
    wide: bool,
    order: Sequence[Sent],
) -> list[Stay] | None:
    """The places of the gaps, those left out that need not leave; None where the budget is too
    small. Offloads have first choice before the step `turn`, prefetches after it; with `wide` what
    is free on the other side is used too, so that transfers may wait there as well. What is sent
    later in the `order` than it is made is there until then."""
    chosen = _in_order(gaps, order)
    slack = _slack(computed, chosen, budget)
    if min(slack) < 0:
        return None
    out = _outs(chosen, slack, turn)
    back = _backs(chosen, slack, turn)
    for place, gap in enumerate(chosen) if wide else ():
        if place in out and back[place] == max(turn, gap.first) and gap.last >= turn:
            back[place] = _earlier(gap, slack, out[place], min(turn, back[place]))
    for place, gap in enumerate(chosen):
        if place not in out:
            out[place] = _later(gap, slack, max(turn, gap.first), back[place])
    return [
        Stay(gap, out[place], back[place])
        for place, gap in enumerate(chosen)
        if out[place] < back[place]
    ]


def placed(
    computed: Computation, found: Sequence[Stay], loss: int, order: Sequence[Sent]
) -> list[Operation]:
    """The sequence with its transfers."""
    frees: dict[int, list[Operation]] = {}
    fetches: dict[int, list[tuple[int, Operation]]] = {}
    leaving = {(stay.gap.made, stay.gap.store) for stay in found}
    sent: dict[int, list[Operation]] = {}
    for what, step in sends([what for what in order if what in leaving]).items():
        sent.setdefault(step, []).append(moving("offload", what[1]))
    for stay in found:
        gap = stay.gap
        frees.setdefault(stay.out, []).append(moving("free", gap.store))
        fetch = moving("prefetch", gap.store)
        fetches.setdefault(stay.back, []).append((gap.last, fetch))
    steps: list[Operation] = []
    for index in range(-1, len(computed.steps)):
        if index >= 0:
            steps += frees.get(index, [])
            steps += [fetch for _, fetch in sorted(fetches.get(index, []), key=lambda f: f[0])]
            steps.append(computed.steps[index])
        steps += sent.get(index, [])
    return together(steps, loss)


def _in_order(gaps: Iterable[Gap], order: Sequence[Sent]) -> list[Gap]:
    """The gaps in which something is gone, each from when it has been sent."""
    places = {sent: place for place, sent in enumerate(order)}
    when = sends(order)

    def cut(gap: Gap) -> Gap:
        first = when[gap.made, gap.store] + 1
        return gap if first <= gap.first else replace(gap, first=first)

    chosen = sorted(gaps, key=lambda gap: (places[gap.made, gap.store], gap.first))
    return [gap for gap in map(cut, chosen) if gap.first <= gap.last]


def _slack(computed: Computation, chosen: Iterable[Gap], budget: int) -> list[int]:
    """The bytes that each step leaves of the budget where all gaps are gone."""
    changes = [0] * (len(computed.needs) + 1)
    for gap in chosen:
        changes[gap.first] += gap.size
        changes[gap.last + 1] -= gap.size
    gone = accumulate(changes[:-1])
    return [budget - need + more for need, more in zip(computed.needs, gone, strict=True)]


def _outs(chosen: Sequence[Gap], slack: list[int], turn: int) -> dict[int, int]:
    """The steps before which gaps, by place, are freed, of those that have to before `turn`; the
    bytes that stay until then are taken from `slack`."""
    out: dict[int, int] = {}
    waiting: list[int] = []
    begins, ends = _by_step(chosen, first=True), _by_step(chosen, first=False)
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


def _backs(chosen: Sequence[Gap], slack: list[int], turn: int) -> list[int]:
    """The steps before which gaps are back; what is back from then on is taken from `slack`."""
    back = [gap.last + 1 if gap.last < turn else max(turn, gap.first) for gap in chosen]
    waiting: deque[int] = deque()
    begins, ends = _by_step(chosen, first=True), _by_step(chosen, first=False)
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


def _by_step(chosen: Iterable[Gap], first: bool) -> dict[int, list[int]]:
    """The places of gaps by the first step of each, or the last."""
    found: dict[int, list[int]] = {}
    for place, gap in enumerate(chosen):
        found.setdefault(gap.first if first else gap.last, []).append(place)
    return found


def _earlier(gap: Gap, slack: list[int], lowest: int, back: int) -> int:
    """How much earlier than before the step `back` a gap can come back."""
    while back > lowest and slack[back - 1] >= gap.size:
        back -= 1
        slack[back] -= gap.size
    return back


def _later(gap: Gap, slack: list[int], out: int, back: int) -> int:
    """How much later than before the step `out` a gap can be freed."""
    while out < back and slack[out] >= gap.size:
        slack[out] -= gap.size
        out += 1
    return out
