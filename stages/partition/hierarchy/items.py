"""The members of one level: nodes or clusters, with what they read and make."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from tightfit.stages.partition.hierarchy.flow import Array, Flow


@dataclass(frozen=True)
class Rows:
    """A list of values for each item: item i has `item[start[i]:start[i + 1]]`."""

    start: Array
    item: Array

    @property
    def owner(self) -> Array:
        """For each entry the item that it belongs to."""
        return np.repeat(np.arange(len(self.start) - 1), np.diff(self.start))

    def taken(self, order: Array) -> Rows:
        """The lists in another order."""
        start, places = gather(self.start, order)
        return Rows(start, self.item[places])


@dataclass(frozen=True)
class Items:
    """Items in topological order. `digest` has 32 bytes a row, `weight` counts nodes. Of a cluster
    only what crosses its border is listed."""

    digest: Array
    weight: Array
    inputs: Rows
    outputs: Rows
    bytes: Array
    result: Array

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self.weight)

    @cached_property
    def colour(self) -> Array:
        """A number for each digest, the same whatever the numbering."""
        return np.ascontiguousarray(self.digest[:, :8]).view(np.uint64).reshape(-1)

    @cached_property
    def maker(self) -> Array:
        """The item that makes each value, -1 where none does."""
        maker = np.full(len(self.bytes), -1)
        maker[self.outputs.item] = self.outputs.owner
        return maker

    @cached_property
    def last(self) -> Array:
        """The last item that reads each value, -1 where none does, one beyond for results."""
        last = np.full(len(self.bytes), -1)
        last[self.inputs.item] = self.inputs.owner
        last[self.result] = self.count
        return last

    def taken(self, order: Array) -> Items:
        """The items in another order."""
        return Items(
            self.digest[order],
            self.weight[order],
            self.inputs.taken(order),
            self.outputs.taken(order),
            self.bytes,
            self.result,
        )


def nodes_of(flow: Flow) -> Items:
    """The nodes of a forward, in its own order."""
    digests = [hashlib.sha256(b"node " + label.encode()).digest() for label in flow.labels]
    table = np.frombuffer(b"".join(digests), np.uint8).reshape(-1, 32)
    return Items(
        table[flow.kind],
        np.ones(flow.count, np.int64),
        Rows(_whole(flow.input_start), _whole(flow.input_item)),
        Rows(_whole(flow.output_start), _whole(flow.output_item)),
        _whole(flow.bytes),
        np.asarray(flow.result, np.bool_),
    )


def gather(start: Array, order: Array) -> tuple[Array, Array]:
    """The beginnings of lists that are taken in another order, and the place of each entry."""
    sizes = np.diff(start)[order]
    begin = starts_of(sizes)
    return begin, np.repeat(start[order] - begin[:-1], sizes) + np.arange(begin[-1])


def starts_of(sizes: Array) -> Array:
    """Where lists of these sizes begin that lie in a row, and where the last one ends."""
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes, dtype=np.int64)])


def _whole(array: Array) -> Array:
    return np.asarray(array, np.int64)
