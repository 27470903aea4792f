"""Where transfers are issued: the places of what leaves and comes back, within a budget.

What leaves is sent when it is made, or in another order, and freed as late as the budget allows,
first sent first; what comes back is fetched as early as the budget allows, last needed last. So the
lanes have the most time (S Proposition 1: offloads as early and prefetches as late as possible need
the least memory, and by the law of lanes a place is all that counts).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from schemas.sequence import Operation, Store, moving
from stages.combine.offload.gaps import Computation, Gap, together

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
    slack = [budget - need for need in computed.needs]
    for gap in chosen:
        for step in range(gap.first, gap.last + 1):
            slack[step] += gap.size
    if min(slack) < 0:
        return None
    out = _outs(chosen, slack, turn)
    back = _backs(chosen, slack, turn)
    for gap in chosen if wide else []:
        if gap in out and back.get(gap) == max(turn, gap.first) and gap.last >= turn:
            back[gap] = _earlier(gap, slack, out[gap], min(turn, back[gap]))
    for gap in chosen:
        if gap not in out:
            begin = max(turn, gap.first)
            out[gap] = _later(gap, slack, begin, back[gap])
    return [Stay(gap, out[gap], back[gap]) for gap in chosen if out[gap] < back[gap]]


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
        return replace(gap, first=max(gap.first, when[gap.made, gap.store] + 1))

    chosen = sorted(gaps, key=lambda gap: (places[gap.made, gap.store], gap.first))
    return [gap for gap in map(cut, chosen) if gap.first <= gap.last]


def _outs(chosen: list[Gap], slack: list[int], turn: int) -> dict[Gap, int]:
    """The steps before which gaps are freed, of those that have to before `turn`; the bytes that
    stay until then are taken from `slack`."""
    out: dict[Gap, int] = {}
    waiting: list[Gap] = []
    ranks = {gap: rank for rank, gap in enumerate(chosen)}
    for step in range(turn):
        waiting = [gap for gap in waiting if gap.last >= step]
        waiting += [gap for gap in chosen if gap.first == step]
        waiting.sort(key=ranks.__getitem__)
        while sum(gap.size for gap in waiting) > slack[step]:
            gap = waiting.pop(0)
            out[gap] = step
        slack[step] -= sum(gap.size for gap in waiting)
    return out


def _backs(chosen: list[Gap], slack: list[int], turn: int) -> dict[Gap, int]:
    """The steps before which gaps are back; what is back from then on is taken from `slack`."""
    back = {gap: gap.last + 1 if gap.last < turn else max(turn, gap.first) for gap in chosen}
    waiting: list[Gap] = []
    for step in range(len(slack) - 1, turn - 1, -1):
        waiting = [gap for gap in waiting if gap.first <= step]
        waiting += [gap for gap in chosen if gap.last == step]
        waiting.sort(key=lambda gap: -gap.last)
        while sum(gap.size for gap in waiting) > slack[step]:
            gap = waiting.pop(0)
            back[gap] = step + 1
        slack[step] -= sum(gap.size for gap in waiting)
    return back


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
