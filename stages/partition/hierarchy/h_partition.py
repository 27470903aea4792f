"""From a forward to a hierarchy of clusters (Z 3.3, Algorithm 7)."""

from __future__ import annotations

import numpy as np

from tightfit.stages.partition.hierarchy.arrays import (
    DEFAULT_ALPHA,
    MAX_ALPHA,
    Array,
    ClusterLevel,
    ClusterTree,
    ForwardGraph,
    HierarchyLimits,
    LevelItems,
    list_starts,
    node_items,
    reorder_lists,
)
from tightfit.stages.partition.hierarchy.canonical import (
    canonical_order,
    contract_clusters,
    topological_order,
)
from tightfit.stages.partition.hierarchy.grouping import merge_neighbors, split_evenly
from tightfit.util.errors import ConfigError


def check_hierarchy(flow: ForwardGraph, tree: ClusterTree, limits: HierarchyLimits) -> None:
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


def _check_flow(flow: ForwardGraph, place: Array, what: str) -> None:
    """No value is read before where it is made."""
    readers = np.repeat(place, np.diff(flow.input_start))
    maker = np.full(len(flow.bytes), -1)
    maker[flow.output_item] = np.repeat(place, np.diff(flow.output_start))
    _require(bool((maker[flow.input_item] <= readers).all()), f"made {what} with a cycle")


def _require(condition: bool, fault: str) -> None:
    if not condition:
        raise RuntimeError(f"H-Partition {fault}")


def h_partition(
    flow: ForwardGraph, limits: HierarchyLimits | None = None, alpha: float = DEFAULT_ALPHA
) -> ClusterTree:
    """A hierarchy of convex clusters within the limits; equal digests say that clusters are equal.

    No level has a cycle. A forward of no more nodes than the top may have is not clustered. Raises
    ArtifactError where the forward is none, ConfigError where it cannot keep the limits.
    """
    limits = limits or HierarchyLimits()
    flow.check()
    limits.check(flow.count)
    if not 0 <= alpha <= MAX_ALPHA:
        raise ConfigError(f"the exponent of the score is {alpha}, not from 0 to {MAX_ALPHA:g}")
    order = topological_order(node_items(flow))
    items = node_items(flow).taken(order)
    inner = canonical_order(items, np.zeros(items.count, np.int64))
    order, items = order[inner], items.taken(inner)
    steps: list[tuple[Array, Array]] = []
    digests: list[Array] = []
    while items.count > limits.top:
        ends = _group_level(items, limits, len(steps), alpha)
        items, inner = _contract_level(items, ends)
        steps.append((inner, ends))
        digests.append(items.digest)
    whole, last = _contract_level(items, np.array([items.count]))
    tree = _build_tree(order, steps, digests, last, whole.digest.tobytes())
    check_hierarchy(flow, tree, limits)
    return tree


def _group_level(items: LevelItems, limits: HierarchyLimits, below: int, alpha: float) -> Array:
    """The ends of the clusters of one more level, few enough for the levels that are left."""
    limit = limits.clusters if below else limits.nodes
    ends = merge_neighbors(items, limit, limits.top, alpha)
    if len(ends) > limits.room(limits.levels - below):
        ends = split_evenly(items.count, limit)
    return ends


def _contract_level(items: LevelItems, ends: Array) -> tuple[LevelItems, Array]:
    """Intervals of items made to clusters, and the order that their items are brought in."""
    sizes = np.diff(ends, prepend=0)
    inner = canonical_order(items, np.repeat(np.arange(len(ends)), sizes))
    return contract_clusters(items.taken(inner), ends), inner


def _build_tree(
    order: Array,
    steps: list[tuple[Array, Array]],
    digests: list[Array],
    last: Array,
    digest: bytes,
) -> ClusterTree:
    """The hierarchy with the members of all clusters in their own order, from the top down."""
    levels = []
    current = last
    for (inner, ends), found in zip(reversed(steps), reversed(digests), strict=True):
        start = list_starts(np.diff(ends, prepend=0))
        levels.append(ClusterLevel(np.diff(start)[current], found[current]))
        _, places = reorder_lists(start, current)
        current = inner[places]
    return ClusterTree(order[current], levels[::-1], digest)
