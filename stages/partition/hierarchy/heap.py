"""The candidates of a level by how good they are: a heap that knows where each one stands."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from tightfit.stages.partition.hierarchy.flow import Array


class Heap(NamedTuple):
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
def new_heap(low: Array, high: Array) -> Heap:
    """Candidates without scores, in the order they are given."""
    count = len(low)
    return Heap(
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
def alike(h: Heap, a: int, b: int) -> bool:
    """Whether nothing but their places tells two candidates apart."""
    return h.score[a] == h.score[b] and h.weight[a] == h.weight[b] and h.label[a] == h.label[b]


@njit(cache=True)
def before(h: Heap, a: int, b: int) -> bool:
    """Whether a is taken before b: by score, then fewer nodes, then what they hold, then place."""
    if h.score[a] != h.score[b]:
        return h.score[a] < h.score[b]
    if h.weight[a] != h.weight[b]:
        return h.weight[a] < h.weight[b]
    if h.label[a] != h.label[b]:
        return h.label[a] < h.label[b]
    return h.low[a] < h.low[b] or (h.low[a] == h.low[b] and a < b)


@njit(cache=True)
def push_up(h: Heap, at: int) -> None:
    """Moves the candidate at a place of the heap before those that are worse."""
    c = h.item[at]
    while at > 0 and before(h, c, h.item[(at - 1) // 2]):
        h.item[at] = h.item[(at - 1) // 2]
        h.place[h.item[at]] = at
        at = (at - 1) // 2
    h.item[at] = c
    h.place[c] = at


@njit(cache=True)
def push_down(h: Heap, at: int) -> None:
    """Moves the candidate at a place of the heap behind those that are better."""
    c, size = h.item[at], h.size[0]
    while 2 * at + 1 < size:
        child = 2 * at + 1
        if child + 1 < size and before(h, h.item[child + 1], h.item[child]):
            child += 1
        if not before(h, h.item[child], c):
            break
        h.item[at] = h.item[child]
        h.place[h.item[at]] = at
        at = child
    h.item[at] = c
    h.place[c] = at


@njit(cache=True)
def take_out(h: Heap, c: int) -> None:
    """Removes a candidate for good."""
    at = h.place[c]
    h.place[c] = -1
    h.size[0] -= 1
    if at == h.size[0]:
        return
    moved = h.item[h.size[0]]
    h.item[at] = moved
    h.place[moved] = at
    push_up(h, at)
    push_down(h, h.place[moved])
