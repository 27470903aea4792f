"""One level of H-Partition: neighbors in the order are merged, the best candidate first.

Candidates are those of Z 3.3.1, from a(x) to x with and without either, as intervals of the order,
and all pairs of neighbors, so that there are candidates as long as two neighbors have room. As
printed, a(x) is the closest common ancestor of what x reads; Property 3 needs more, that no path
from a source to x passes by a(x), which is what `_dominators` finds. Nor does Algorithm 7 end as
printed where no candidate has room, which skip connections bring about: the pairs mend that.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from tightfit.stages.partition.hierarchy.arrays import Array, LevelItems, list_starts


class CandidateHeap(NamedTuple):
    """Candidates, each an interval `low` to `high` with its score, its number of nodes and a label
    of what it holds. `item[:size[0]]` are those still there, `place` says where; -1: no more."""

    low: Array
    high: Array
    score: Array
    weight: Array
    label: Array
    item: Array
    place: Array
    size: Array


@njit(cache=True)
def build_heap(low: Array, high: Array) -> CandidateHeap:
    """Candidates without scores, in the order they are given."""
    count = len(low)
    return CandidateHeap(
        low.copy(),
        high.copy(),
        np.zeros(count),
        np.zeros(count, np.int64),
        np.zeros(count, np.uint64),
        np.arange(count),
        np.arange(count),
        np.array([count]),
    )


@njit(cache=True)
def equal_rank(h: CandidateHeap, a: int, b: int) -> bool:
    """Whether nothing but their places tells two candidates apart."""
    return h.score[a] == h.score[b] and h.weight[a] == h.weight[b] and h.label[a] == h.label[b]


@njit(cache=True)
def precedes(h: CandidateHeap, a: int, b: int) -> bool:
    """Whether a is taken before b: by score, then fewer nodes, then what they hold, then place."""
    if h.score[a] != h.score[b]:
        return h.score[a] < h.score[b]
    if h.weight[a] != h.weight[b]:
        return h.weight[a] < h.weight[b]
    if h.label[a] != h.label[b]:
        return h.label[a] < h.label[b]
    return h.low[a] < h.low[b] or (h.low[a] == h.low[b] and a < b)


@njit(cache=True)
def sift_up(h: CandidateHeap, at: int) -> None:
    """Moves the candidate at a place of the heap before those that are worse."""
    c = h.item[at]
    while at > 0 and precedes(h, c, h.item[(at - 1) // 2]):
        h.item[at] = h.item[(at - 1) // 2]
        h.place[h.item[at]] = at
        at = (at - 1) // 2
    h.item[at] = c
    h.place[c] = at


@njit(cache=True)
def sift_down(h: CandidateHeap, at: int) -> None:
    """Moves the candidate at a place of the heap behind those that are better."""
    c, size = h.item[at], h.size[0]
    while 2 * at + 1 < size:
        child = 2 * at + 1
        if child + 1 < size and precedes(h, h.item[child + 1], h.item[child]):
            child += 1
        if not precedes(h, h.item[child], c):
            break
        h.item[at] = h.item[child]
        h.place[h.item[at]] = at
        at = child
    h.item[at] = c
    h.place[c] = at


@njit(cache=True)
def remove_candidate(h: CandidateHeap, c: int) -> None:
    """Removes a candidate for good."""
    at = h.place[c]
    h.place[c] = -1
    h.size[0] -= 1
    if at == h.size[0]:
        return
    moved = h.item[h.size[0]]
    h.item[at] = moved
    h.place[moved] = at
    sift_up(h, at)
    sift_down(h, h.place[moved])


_BASE = np.uint64(0x9E3779B97F4A7C15)


class ItemArrays(NamedTuple):
    """The rows of what items read and make (`items.Rows`), the item that makes each value and the
    `last` one that reads it, with its bytes; and by item sums of weights and of digests, with the
    powers that the latter are made of (`_prefix_hashes`)."""

    input_start: Array
    input_item: Array
    output_start: Array
    output_item: Array
    maker: Array
    last: Array
    bytes: Array
    weight: Array
    digest_hash: Array
    power: Array


class _Candidates(NamedTuple):
    """Intervals of the order, those that begin at an item, and in `order` those that end at one."""

    low: Array
    high: Array
    by_low: Array
    order: Array
    by_high: Array


class _GroupingLimits(NamedTuple):
    """What `grouped` is told of sizes, with alpha of the score."""

    limit: int
    enough: int
    alpha: float


class _Groups(NamedTuple):
    """Where the group of each item begins and ends, and values `stamped` as counted."""

    begin: Array
    finish: Array
    stamp: Array


def merge_neighbors(items: LevelItems, limit: int, enough: int, alpha: float) -> Array:
    """The ends of the groups that `items`, in topological order, are merged to.

    No group has more than `limit` items. Merging stops once there are `enough` groups or fewer,
    or no two neighbors have room; candidates that nothing but their place tells apart are all
    taken before it stops, so that equal parts are cut equally.
    """
    limit = min(limit, items.count)
    above = _dominators(items.inputs.start, items.maker[items.inputs.item], limit)
    low, high = _candidates(above, limit)
    facts = ItemArrays(
        items.inputs.start,
        items.inputs.item,
        items.outputs.start,
        items.outputs.item,
        items.maker,
        items.last,
        items.bytes,
        list_starts(items.weight),
        _prefix_hashes(items.digest_hash),
        _hash_powers(limit),
    )
    by_low = list_starts(np.bincount(low, minlength=items.count))
    order = np.argsort(high, kind="stable")
    by_high = list_starts(np.bincount(high - 1, minlength=items.count))
    candidates = _Candidates(low, high, by_low, order, by_high)
    finish = _merge_groups(facts, candidates, _GroupingLimits(limit, enough, alpha))
    return np.unique(finish)


def split_evenly(count: int, limit: int) -> Array:
    """The ends of groups of `limit` items, the last one the rest."""
    return np.minimum(np.arange(1, -(-count // limit) + 1) * limit, count)


@njit(cache=True)
def _dominators(start: Array, maker: Array, limit: int) -> Array:
    """For each item the last one before it that all paths to it pass, -1 where that is none or
    `limit` or more items away. Items that read nothing of others are passed over: they may join
    any group."""
    count = len(start) - 1
    above = np.full(count, -1, np.int64)
    free = np.ones(count, np.bool_)
    for item in range(count):
        found = -2
        for edge in range(start[item], start[item + 1]):
            other = maker[edge]
            if other < 0:
                continue
            free[item] = False
            if free[other]:
                continue
            if found == -2:
                found = other
            while found != other and min(found, other) > item - limit and min(found, other) >= 0:
                if found > other:
                    found = above[found]
                else:
                    other = above[other]
            if found != other or found <= item - limit:
                found = -1
                break
        above[item] = max(found, -1)
    return above


def _candidates(above: Array, limit: int) -> tuple[Array, Array]:
    """Intervals of two items or more, each once, by their beginnings."""
    count = len(above)
    x = np.flatnonzero(above >= 0)
    a = above[x]
    low = np.concatenate([np.arange(count - 1), a, a, a + 1, a + 1])
    high = np.concatenate([np.arange(2, count + 1), x + 1, x, x + 1, x])
    fits = (high - low >= 2) & (high - low <= limit)
    keys = np.unique(low[fits] * (limit + 1) + high[fits] - low[fits])
    return keys // (limit + 1), keys // (limit + 1) + keys % (limit + 1)


@njit(cache=True)
def _prefix_hashes(color: Array) -> Array:
    """Sums by which a number for any row of items is told from their digests (`_node_label`)."""
    total = np.zeros(len(color) + 1, np.uint64)
    for item in range(len(color)):
        total[item + 1] = total[item] * _BASE + color[item]
    return total


@njit(cache=True)
def _hash_powers(limit: int) -> Array:
    power = np.ones(limit + 1, np.uint64)
    for index in range(limit):
        power[index + 1] = power[index] * _BASE
    return power


@njit(cache=True)
def border_bytes(facts: ItemArrays, low: int, high: int, stamp: Array, mark: int) -> int:
    """The bytes of the values that the items from `low` to `high` read of others and make for
    others, each counted once (the sum of Z eq. 3.1, its summand read as the size of x)."""
    input_item, output_item = facts.input_item, facts.output_item
    maker, size = facts.maker, facts.bytes
    total = 0
    for edge in range(facts.input_start[low], facts.input_start[high]):
        value = input_item[edge]
        if maker[value] < low and stamp[value] != mark:
            stamp[value] = mark
            total += size[value]
    for edge in range(facts.output_start[low], facts.output_start[high]):
        if facts.last[output_item[edge]] >= high:
            total += size[output_item[edge]]
    return total


@njit(cache=True)
def _score_candidate(
    facts: ItemArrays, heap: CandidateHeap, c: int, stamp: Array, mark: int, alpha: float
) -> None:
    """Scores a candidate by Z eq. 3.1 and labels it by what it holds."""
    low, high = heap.low[c], heap.high[c]
    weight, total, power = facts.weight, facts.digest_hash, facts.power
    nodes = weight[high] - weight[low]
    heap.score[c] = border_bytes(facts, low, high, stamp, mark) * float(nodes) ** alpha
    heap.weight[c] = nodes
    heap.label[c] = total[high] - total[low] * power[high - low]


@njit(cache=True)
def _merge_groups(facts: ItemArrays, candidates: _Candidates, limits: _GroupingLimits) -> Array:
    """For each item where its group ends."""
    low, high, by_low, order, by_high = candidates
    count = len(by_low) - 1
    begin, finish = np.arange(count), np.arange(1, count + 1)
    stamp = np.full(len(facts.bytes), -1)
    groups = _Groups(begin, finish, stamp)
    heap = build_heap(low, high)
    mark = 0
    for c in range(len(low)):
        _score_candidate(facts, heap, c, stamp, mark, limits.alpha)
        mark += 1
    for at in range(heap.size[0] // 2 - 1, -1, -1):
        sift_down(heap, at)
    left, previous = count, -1
    while heap.size[0]:
        c = heap.item[0]
        if left <= limits.enough and (previous < 0 or not equal_rank(heap, previous, c)):
            break
        first, end = heap.low[c], heap.high[c]
        at = first
        while at < end:
            left -= 1
            at = finish[at]
        left += 1
        begin[first:end] = first
        finish[first:end] = end
        previous = c
        for item in range(first, end):
            for edge in range(by_low[item], by_low[item + 1]):
                mark = _update_candidate(facts, heap, edge, groups, limits, mark)
            for edge in range(by_high[item], by_high[item + 1]):
                mark = _update_candidate(facts, heap, order[edge], groups, limits, mark)
    return finish


@njit(cache=True)
def _update_candidate(
    facts: ItemArrays,
    heap: CandidateHeap,
    c: int,
    groups: _Groups,
    limits: _GroupingLimits,
    mark: int,
) -> int:
    """Brings a candidate up to the groups that it touches, with all that they hold (Z 3.3.4)."""
    if heap.place[c] < 0:
        return mark
    low, high = groups.begin[heap.low[c]], groups.finish[heap.high[c] - 1]
    if groups.finish[low] == high or high - low > limits.limit:
        remove_candidate(heap, c)
    elif low != heap.low[c] or high != heap.high[c]:
        heap.low[c], heap.high[c] = low, high
        _score_candidate(facts, heap, c, groups.stamp, mark, limits.alpha)
        sift_up(heap, heap.place[c])
        sift_down(heap, heap.place[c])
    return mark + 1
