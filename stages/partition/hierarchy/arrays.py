"""What H-Partition takes and gives: flat arrays."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from tightfit.util.errors import ArtifactError, ConfigError

Array = np.ndarray[Any, np.dtype[Any]]

DEFAULT_ALPHA = 0.5
"""The exponent of Z eq. 3.1 by default, as published."""
MAX_ALPHA = 10.0
"""The largest exponent that is taken; scores stay finite."""
MAX_MEMBERS = 2**62
"""The largest limit that is taken; artifacts hold it in 64 bits."""


@dataclass(frozen=True)
class HierarchyLimits:
    """The sizes that a hierarchy keeps: `nodes` in a lowest cluster, `clusters` in any other one
    (both M^l in Z, Algorithm 7), members of the whole (`top`, M^t), and `levels` of clusters."""

    nodes: int = 20
    clusters: int = 20
    top: int = 40
    levels: int = 16

    def check(self, count: int) -> None:
        """Raises ConfigError where no hierarchy of `count` nodes keeps them, or any may not."""
        if min(self.nodes, self.clusters) < 2 or self.levels < 1:
            raise ConfigError(
                f"the limits are {self.nodes} nodes, {self.clusters} clusters and {self.levels} "
                "levels: a cluster has room for two members at least, a hierarchy one level"
            )
        if (largest := max(self.nodes, self.clusters, self.top)) > MAX_MEMBERS:
            raise ConfigError(f"a limit of {largest} members is above {MAX_MEMBERS}")
        if self.top < self.clusters:
            raise ConfigError(
                f"the top of a hierarchy has room for {self.top} members, less than a cluster, "
                f"which has room for {self.clusters}"
            )
        most = self.nodes * self.room(self.levels)
        if count > most:
            raise ConfigError(
                f"{count} nodes do not fit a hierarchy of {self.levels} levels, {most} would"
            )

    def room(self, levels: int) -> int:
        """How many clusters may be made where `levels` are left, this one included."""
        return int(self.top * self.clusters ** min(levels - 1, 64))


@dataclass(frozen=True)
class ForwardGraph:
    """A forward: nodes that read and make values.

    Node i is of kind `labels[kind[i]]`: equal labels say equal work. Node i reads the values
    `input_item[input_start[i]:input_start[i + 1]]`, in the order of its operands, and makes those
    of `output_item` in the same way. A value has `bytes` and is a `result` where it outlives the
    forward; one that no node makes is given from outside.
    """

    labels: Sequence[str]
    kind: Array
    input_start: Array
    input_item: Array
    output_start: Array
    output_item: Array
    bytes: Array
    result: Array

    @property
    def count(self) -> int:
        """How many nodes there are."""
        return len(self.kind)

    def check(self) -> None:
        """Raises ArtifactError where arrays do not fit together; cycles are found later."""
        values = len(self.bytes)
        for start, item in (
            (self.input_start, self.input_item),
            (self.output_start, self.output_item),
        ):
            _require(len(start) == self.count + 1, "has lists of values for other nodes")
            _require(start[0] == 0 and start[-1] == len(item), "has values that no node lists")
            _require(bool((np.diff(start) >= 0).all()), "has a list of values that ends early")
            _require(_in_range(item, values), "reads or makes a value that is not there")
        _require(_in_range(self.kind, len(self.labels)), "has a node of a kind that is not there")
        _require(len(self.result) == values, "says of other values whether they are results")
        _require(not values or int(self.bytes.min()) >= 0, "has a value of negative size")
        made = np.bincount(self.output_item, minlength=values) if values else np.zeros(1)
        _require(int(made.max()) <= 1, "makes a value twice")


@dataclass(frozen=True)
class ClusterLevel:
    """Clusters in order: how many members each has, and its digest (32 bytes a row). Members are
    in a row: those of cluster c begin where those of c - 1 end."""

    sizes: Array
    digests: Array


@dataclass(frozen=True)
class ClusterTree:
    """A hierarchy: `order` are the nodes, so that each cluster of each level is an interval of
    them and equal clusters agree node by node. `levels` are from the lowest on; the members of a
    level's clusters are the clusters of the level below, or nodes. `digest` is that of the whole,
    whose members are the clusters of the last level."""

    order: Array
    levels: list[ClusterLevel]
    digest: bytes


def _in_range(items: Array, count: int) -> bool:
    return not len(items) or bool(items.min() >= 0 and items.max() < count)


def _require(condition: bool, fault: str) -> None:
    if not condition:
        raise ArtifactError(f"the forward {fault}")


@dataclass(frozen=True)
class ValueLists:
    """A list of values for each item: item i has `item[start[i]:start[i + 1]]`."""

    start: Array
    item: Array

    @property
    def owner(self) -> Array:
        """For each entry the item that it belongs to."""
        return np.repeat(np.arange(len(self.start) - 1), np.diff(self.start))

    def taken(self, order: Array) -> ValueLists:
        """The lists in another order."""
        start, places = reorder_lists(self.start, order)
        return ValueLists(start, self.item[places])


@dataclass(frozen=True)
class LevelItems:
    """Items in topological order. `digest` has 32 bytes a row, `weight` counts nodes. Of a cluster
    only what crosses its border is listed."""

    digest: Array
    weight: Array
    inputs: ValueLists
    outputs: ValueLists
    bytes: Array
    result: Array

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self.weight)

    @cached_property
    def digest_hash(self) -> Array:
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

    def taken(self, order: Array) -> LevelItems:
        """The items in another order."""
        return LevelItems(
            self.digest[order],
            self.weight[order],
            self.inputs.taken(order),
            self.outputs.taken(order),
            self.bytes,
            self.result,
        )


def node_items(flow: ForwardGraph) -> LevelItems:
    """The nodes of a forward, in its own order."""
    digests = [hashlib.sha256(b"node " + label.encode()).digest() for label in flow.labels]
    table = np.frombuffer(b"".join(digests), np.uint8).reshape(-1, 32)
    return LevelItems(
        table[flow.kind],
        np.ones(flow.count, np.int64),
        ValueLists(_as_int64(flow.input_start), _as_int64(flow.input_item)),
        ValueLists(_as_int64(flow.output_start), _as_int64(flow.output_item)),
        _as_int64(flow.bytes),
        np.asarray(flow.result, np.bool_),
    )


def reorder_lists(start: Array, order: Array) -> tuple[Array, Array]:
    """The beginnings of lists that are taken in another order, and the place of each entry."""
    sizes = np.diff(start)[order]
    begin = list_starts(sizes)
    return begin, np.repeat(start[order] - begin[:-1], sizes) + np.arange(begin[-1])


def list_starts(sizes: Array) -> Array:
    """Where lists of these sizes begin that lie in a row, and where the last one ends."""
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes, dtype=np.int64)])


def _as_int64(array: Array) -> Array:
    return np.asarray(array, np.int64)
