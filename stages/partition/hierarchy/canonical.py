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

from tightfit.stages.partition.hierarchy.flow import Array
from tightfit.stages.partition.hierarchy.items import Items, Rows, starts_of


def clustered(items: Items, ends: Array) -> Items:
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
    total = starts_of(items.weight)
    return Items(
        _digests(items, bounds, forms, form_ends),
        total[bounds[1:]] - total[bounds[:-1]],
        Rows(np.concatenate([np.zeros(1, np.int64), input_ends]), inputs),
        Rows(np.concatenate([np.zeros(1, np.int64), output_ends]), outputs),
        items.bytes,
        items.result,
    )


def _digests(items: Items, bounds: Array, forms: Array, form_ends: Array) -> Array:
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
