"""What H-Partition takes and gives: flat arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tightfit.schemas.errors import ArtifactError, ConfigError

Array = np.ndarray[Any, np.dtype[Any]]

ALPHA = 0.5
"""The exponent of Z eq. 3.1 by default, as published."""
MOST_ALPHA = 10.0
"""The largest exponent that is taken; scores stay finite."""
MOST_MEMBERS = 2**62
"""The largest limit that is taken; artifacts hold it in 64 bits."""


@dataclass(frozen=True)
class Limits:
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
        if (largest := max(self.nodes, self.clusters, self.top)) > MOST_MEMBERS:
            raise ConfigError(f"a limit of {largest} members is above {MOST_MEMBERS}")
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
class Flow:
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
            _require(_within(item, values), "reads or makes a value that is not there")
        _require(_within(self.kind, len(self.labels)), "has a node of a kind that is not there")
        _require(len(self.result) == values, "says of other values whether they are results")
        _require(not values or int(self.bytes.min()) >= 0, "has a value of negative size")
        made = np.bincount(self.output_item, minlength=values) if values else np.zeros(1)
        _require(int(made.max()) <= 1, "makes a value twice")


@dataclass(frozen=True)
class Level:
    """Clusters in order: how many members each has, and its digest (32 bytes a row). Members are
    in a row: those of cluster c begin where those of c - 1 end."""

    sizes: Array
    digests: Array


@dataclass(frozen=True)
class Tree:
    """A hierarchy: `order` are the nodes, so that each cluster of each level is an interval of
    them and equal clusters agree node by node. `levels` are from the lowest on; the members of a
    level's clusters are the clusters of the level below, or nodes. `digest` is that of the whole,
    whose members are the clusters of the last level."""

    order: Array
    levels: list[Level]
    digest: bytes


def _within(items: Array, count: int) -> bool:
    return not len(items) or bool(items.min() >= 0 and items.max() < count)


def _require(condition: bool, fault: str) -> None:
    if not condition:
        raise ArtifactError(f"the forward {fault}")
