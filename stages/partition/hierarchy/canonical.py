"""What clusters are, whatever surrounds them: their digests, and the items of the next level.

The form of a cluster lists, member by member, what each one reads (the output of a member before
it, or a value from outside, numbered as they are met, with its bytes) and makes (bytes; read inside
only, outside too, or a result). With the digests of the members this says all of a cluster that
structure says: clusters of one digest are isomorphic, and their members agree in order.
"""

from __future__ import annotations

import hashlib

import numpy as np
from numba import njit

from tightfit.stages.partition.hierarchy.arrays import Array, LevelItems, ValueLists, list_starts
from tightfit.util.errors import ArtifactError


def contract_clusters(items: LevelItems, ends: Array) -> LevelItems:
    """The clusters of items that lie in a row, as items themselves. Each cluster's items are in the
    order that `order.arranged` gives them."""
    bounds = np.concatenate([np.zeros(1, np.int64), ends])
    ranks = np.arange(len(items.outputs.item)) - items.outputs.start[items.outputs.owner]
    rank = np.full(len(items.bytes), -1)
    rank[items.outputs.item] = ranks
    forms, form_ends, inputs, input_ends, outputs, output_ends = _forms(
        bounds,
        (items.inputs.start, items.inputs.item, items.outputs.start, items.outputs.item),
        (items.maker, items.last, rank, items.bytes),
        items.result,
    )
    total = list_starts(items.weight)
    return LevelItems(
        _digests(items, bounds, forms, form_ends),
        total[bounds[1:]] - total[bounds[:-1]],
        ValueLists(np.concatenate([np.zeros(1, np.int64), input_ends]), inputs),
        ValueLists(np.concatenate([np.zeros(1, np.int64), output_ends]), outputs),
        items.bytes,
        items.result,
    )


def _digests(items: LevelItems, bounds: Array, forms: Array, form_ends: Array) -> Array:
    """The digest of each cluster's form with the digests of its members."""
    text, members = forms.astype("<i8").tobytes(), items.digest.tobytes()
    digests = []
    start = 0
    for index, end in enumerate(form_ends.tolist()):
        low, high = int(bounds[index]), int(bounds[index + 1])
        form = hashlib.sha256(b"cluster ")
        form.update(text[8 * start : 8 * end])
        form.update(members[32 * low : 32 * high])
        digests.append(form.digest())
        start = end
    return np.frombuffer(b"".join(digests), np.uint8).reshape(-1, 32)


@njit(cache=True)
def _forms(
    bounds: Array,
    lists: tuple[Array, Array, Array, Array],
    facts: tuple[Array, Array, Array, Array],
    result: Array,
) -> tuple[Array, Array, Array, Array, Array, Array]:
    """The forms of all clusters in a row, what each one reads of others, and makes for others."""
    input_start, input_item, output_start, output_item = lists
    maker, last, rank, size = facts
    count = len(bounds) - 1
    room = 2 * (len(input_item) + len(output_item) + bounds[-1]) + count
    form = np.empty(room, np.int64)
    inputs, outputs = np.empty(len(input_item), np.int64), np.empty(len(output_item), np.int64)
    ends = np.empty((3, count), np.int64)
    met, number = np.full(len(size), -1), np.zeros(len(size), np.int64)
    f = i = o = 0
    for cluster in range(count):
        low, high = bounds[cluster], bounds[cluster + 1]
        first = i
        form[f] = high - low
        f += 1
        for item in range(low, high):
            form[f] = input_start[item + 1] - input_start[item]
            form[f + 1] = output_start[item + 1] - output_start[item]
            f += 2
            for edge in range(input_start[item], input_start[item + 1]):
                value = input_item[edge]
                if maker[value] >= low:
                    form[f], form[f + 1] = maker[value] - low, rank[value]
                elif met[value] == cluster:
                    form[f], form[f + 1] = -1, number[value]
                else:
                    met[value], number[value] = cluster, i - first
                    form[f], form[f + 1] = -2, size[value]
                    inputs[i] = value
                    i += 1
                f += 2
            for edge in range(output_start[item], output_start[item + 1]):
                value = output_item[edge]
                form[f], form[f + 1] = size[value], 2 if result[value] else int(last[value] >= high)
                f += 2
                if last[value] >= high:
                    outputs[o] = value
                    o += 1
        ends[0, cluster], ends[1, cluster], ends[2, cluster] = f, i, o
    return form[:f], ends[0], inputs[:i], ends[1], outputs[:o], ends[2]


def topological_order(items: LevelItems) -> Array:
    """Any topological order; raises ArtifactError where there is none."""
    maker = items.maker[items.inputs.item]
    reader = items.inputs.owner
    inner = maker >= 0
    by_maker = np.argsort(maker[inner], kind="stable")
    start = np.searchsorted(maker[inner][by_maker], np.arange(items.count + 1))
    order = _kahn_order(start, reader[inner][by_maker], items.count)
    if len(order) < items.count:
        raise ArtifactError("the forward has a cycle: a node reads what is made of its output")
    return order


def canonical_order(items: LevelItems, cluster: Array) -> Array:
    """The order of the items of each cluster by itself, clusters in a row.

    `items` are in topological order and those of one `cluster` next to each other. Only what
    passes within a cluster counts, and digests tell what comes first where depths are equal.
    """
    maker = items.maker[items.inputs.item]
    reader = items.inputs.owner
    inner = (maker >= 0) & (cluster[maker] == cluster[reader])
    start = items.inputs.start
    depth, shade = _depths_and_hashes(
        start, maker, inner, items.bytes[items.inputs.item], items.digest_hash
    )
    maker, reader = maker[inner], reader[inner]
    order = np.lexsort((-depth[maker], reader))
    begin = np.searchsorted(reader, np.arange(items.count + 1))
    ends = np.ones(items.count, np.bool_)
    ends[maker] = False
    sinks = np.flatnonzero(ends)
    sinks = sinks[np.lexsort((shade[sinks], depth[sinks], cluster[sinks]))]
    return _depth_first_order(sinks, begin, maker[order], items.count)


@njit(cache=True)
def _kahn_order(start: Array, reader: Array, count: int) -> Array:
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
def _depths_and_hashes(
    start: Array, maker: Array, inner: Array, size: Array, color: Array
) -> tuple[Array, Array]:
    """For each item how many come before it on the longest path within its cluster, and a number
    that tells what it is made of there."""
    count = len(color)
    depth = np.zeros(count, np.int64)
    shade = np.empty(count, np.uint64)
    for item in range(count):
        mixed = color[item]
        for edge in range(start[item], start[item + 1]):
            if inner[edge]:
                depth[item] = max(depth[item], depth[maker[edge]] + 1)
                mixed = _mix_hashes(mixed, shade[maker[edge]])
            mixed = _mix_hashes(mixed, np.uint64(size[edge]))
        shade[item] = mixed
    return depth, shade


@njit(cache=True)
def _mix_hashes(first: np.uint64, second: np.uint64) -> np.uint64:
    """Two numbers made into one, by multiplication and shifts."""
    value = (first ^ (second + np.uint64(0x9E3779B97F4A7C15))) * np.uint64(0xBF58476D1CE4E5B9)
    return (value ^ (value >> np.uint64(29))) * np.uint64(0x94D049BB133111EB)


@njit(cache=True)
def _depth_first_order(sinks: Array, begin: Array, maker: Array, count: int) -> Array:
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
