"""Whether a hierarchy is one: a check on H-Partition itself, of all that it promises."""

from __future__ import annotations

import numpy as np

from tightfit.stages.partition.hierarchy.flow import Array, Flow, Limits, Tree


def check_tree(flow: Flow, tree: Tree, limits: Limits) -> None:
    """Raises RuntimeError unless every node is in one lowest cluster, sizes keep the limits, and at
    every level all values pass on to later clusters or stay: then the clusters make no cycle."""
    _require(bool((np.sort(tree.order) == np.arange(flow.count)).all()), "lost or doubled a node")
    _require(len(tree.levels) <= limits.levels, "made too many levels")
    place = np.empty(flow.count, np.int64)
    place[tree.order] = np.arange(flow.count)
    count = flow.count
    _check_flow(flow, place, "an order")
    for number, level in enumerate(tree.levels):
        limit = limits.clusters if number else limits.nodes
        _require(int(level.sizes.sum()) == count, "lost or doubled a cluster")
        _require(level.sizes.min() >= 1 and level.sizes.max() <= limit, "made a cluster too large")
        count = len(level.sizes)
        _require(len(level.digests) == count, "lost a digest")
        cluster = np.repeat(np.arange(count), level.sizes)
        _require(bool((np.diff(cluster) >= 0).all()), "tore a cluster")
        place = cluster[place]
        _check_flow(flow, place, "clusters")
    _require(count <= limits.top, "left too many clusters at the top")


def _check_flow(flow: Flow, place: Array, what: str) -> None:
    """No value is read before where it is made."""
    readers = np.repeat(place, np.diff(flow.input_start))
    maker = np.full(len(flow.bytes), -1)
    maker[flow.output_item] = np.repeat(place, np.diff(flow.output_start))
    _require(bool((maker[flow.input_item] <= readers).all()), f"made {what} with a cycle")


def _require(condition: bool, fault: str) -> None:
    if not condition:
        raise RuntimeError(f"H-Partition {fault}")
