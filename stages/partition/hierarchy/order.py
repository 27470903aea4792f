"""A topological order that follows from structure, and from numbers only where nothing else tells.

Items come right before what first needs them: a walk in depth from what nobody reads, the deepest
input first, then in the order of the operands. So branches stay together and what is made aside
comes late. Equal parts of a graph are put in equal orders.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from tightfit.schemas.errors import ArtifactError
from tightfit.stages.partition.hierarchy.flow import Array
from tightfit.stages.partition.hierarchy.items import Items


def topological(items: Items) -> Array:
    """Any topological order; raises ArtifactError where there is none."""
    maker = items.maker[items.inputs.item]
    reader = items.inputs.owner
    inner = maker >= 0
    by_maker = np.argsort(maker[inner], kind="stable")
    start = np.searchsorted(maker[inner][by_maker], np.arange(items.count + 1))
    order = _peeled(start, reader[inner][by_maker], items.count)
    if len(order) < items.count:
        raise ArtifactError("the forward has a cycle: a node reads what is made of its output")
    return order


def arranged(items: Items, cluster: Array) -> Array:
    """The order of the items of each cluster by itself, clusters in a row.

    `items` are in topological order and those of one `cluster` next to each other. Only what
    passes within a cluster counts, and digests tell what comes first where depths are equal.
    """
    maker = items.maker[items.inputs.item]
    reader = items.inputs.owner
    inner = (maker >= 0) & (cluster[maker] == cluster[reader])
    start = items.inputs.start
    depth, shade = _shaded(start, maker, inner, items.bytes[items.inputs.item], items.colour)
    maker, reader = maker[inner], reader[inner]
    order = np.lexsort((-depth[maker], reader))
    begin = np.searchsorted(reader, np.arange(items.count + 1))
    ends = np.ones(items.count, np.bool_)
    ends[maker] = False
    sinks = np.flatnonzero(ends)
    sinks = sinks[np.lexsort((shade[sinks], depth[sinks], cluster[sinks]))]
    return _walked(sinks, begin, maker[order], items.count)


@njit(cache=True)
def _peeled(start: Array, reader: Array, count: int) -> Array:
    """Items after all that they read of, as far as there is no cycle."""
    waiting = np.zeros(count, np.int64)
    for edge in range(len(reader)):
        waiting[reader[edge]] += 1
    order = np.empty(count, np.int64)
    found = 0
    for item in range(count):
        if waiting[item] == 0:
            order[found] = item
            found += 1
    at = 0
    while at < found:
        item = order[at]
        at += 1
        for edge in range(start[item], start[item + 1]):
            waiting[reader[edge]] -= 1
            if waiting[reader[edge]] == 0:
                order[found] = reader[edge]
                found += 1
    return order[:found]


@njit(cache=True)
def _shaded(
    start: Array, maker: Array, inner: Array, size: Array, colour: Array
) -> tuple[Array, Array]:
    """For each item how many come before it on the longest path within its cluster, and a number
    that tells what it is made of there."""
    count = len(colour)
    depth = np.zeros(count, np.int64)
    shade = np.empty(count, np.uint64)
    for item in range(count):
        mixed = colour[item]
        for edge in range(start[item], start[item + 1]):
            if inner[edge]:
                depth[item] = max(depth[item], depth[maker[edge]] + 1)
                mixed = _mixed(mixed, shade[maker[edge]])
            mixed = _mixed(mixed, np.uint64(size[edge]))
        shade[item] = mixed
    return depth, shade


@njit(cache=True)
def _mixed(first: np.uint64, second: np.uint64) -> np.uint64:
    """Two numbers made into one, by multiplication and shifts."""
    value = (first ^ (second + np.uint64(0x9E3779B97F4A7C15))) * np.uint64(0xBF58476D1CE4E5B9)
    return (value ^ (value >> np.uint64(29))) * np.uint64(0x94D049BB133111EB)


@njit(cache=True)
def _walked(sinks: Array, begin: Array, maker: Array, count: int) -> Array:
    """Items after all that they need, from one sink after the other."""
    order = np.empty(count, np.int64)
    found = 0
    seen = np.zeros(count, np.bool_)
    next_edge = begin[:-1].copy()
    stack = np.empty(count, np.int64)
    for sink in sinks:
        stack[0] = sink
        high = 1
        seen[sink] = True
        while high:
            item = stack[high - 1]
            if next_edge[item] == begin[item + 1]:
                order[found] = item
                found += 1
                high -= 1
                continue
            needed = maker[next_edge[item]]
            next_edge[item] += 1
            if not seen[needed]:
                seen[needed] = True
                stack[high] = needed
                high += 1
    return order
