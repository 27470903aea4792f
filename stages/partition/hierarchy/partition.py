"""From a forward to a hierarchy of clusters (Z 3.3, Algorithm 7)."""

from __future__ import annotations

import numpy as np

from tightfit.schemas.errors import ConfigError
from tightfit.stages.partition.hierarchy.canonical import clustered
from tightfit.stages.partition.hierarchy.check import check_tree
from tightfit.stages.partition.hierarchy.flow import (
    ALPHA,
    MOST_ALPHA,
    Array,
    Flow,
    Level,
    Limits,
    Tree,
)
from tightfit.stages.partition.hierarchy.grouping import full_runs, grouped
from tightfit.stages.partition.hierarchy.items import Items, gather, nodes_of, starts_of
from tightfit.stages.partition.hierarchy.order import arranged, topological


def h_partition(flow: Flow, limits: Limits | None = None, alpha: float = ALPHA) -> Tree:
    """A hierarchy of convex clusters within the limits; equal digests say that clusters are equal.

    No level has a cycle. A forward of no more nodes than the top may have is not clustered. Raises
    ArtifactError where the forward is none, ConfigError where it cannot keep the limits.
    """
    limits = limits or Limits()
    flow.check()
    limits.check(flow.count)
    if not 0 <= alpha <= MOST_ALPHA:
        raise ConfigError(f"the exponent of the score is {alpha}, not from 0 to {MOST_ALPHA:g}")
    order = topological(nodes_of(flow))
    items = nodes_of(flow).taken(order)
    inner = arranged(items, np.zeros(items.count, np.int64))
    order, items = order[inner], items.taken(inner)
    steps: list[tuple[Array, Array]] = []
    digests: list[Array] = []
    while items.count > limits.top:
        ends = _level(items, limits, len(steps), alpha)
        items, inner = _closed(items, ends)
        steps.append((inner, ends))
        digests.append(items.digest)
    whole, last = _closed(items, np.array([items.count]))
    tree = _opened(order, steps, digests, last, whole.digest.tobytes())
    check_tree(flow, tree, limits)
    return tree


def _level(items: Items, limits: Limits, below: int, alpha: float) -> Array:
    """The ends of the clusters of one more level, few enough for the levels that are left."""
    limit = limits.clusters if below else limits.nodes
    ends = grouped(items, limit, limits.top, alpha)
    if len(ends) > limits.room(limits.levels - below):
        ends = full_runs(items.count, limit)
    return ends


def _closed(items: Items, ends: Array) -> tuple[Items, Array]:
    """Intervals of items made to clusters, and the order that their items are brought in."""
    sizes = np.diff(ends, prepend=0)
    inner = arranged(items, np.repeat(np.arange(len(ends)), sizes))
    return clustered(items.taken(inner), ends), inner


def _opened(
    order: Array,
    steps: list[tuple[Array, Array]],
    digests: list[Array],
    last: Array,
    digest: bytes,
) -> Tree:
    """The hierarchy with the members of all clusters in their own order, from the top down."""
    levels = []
    current = last
    for (inner, ends), found in zip(reversed(steps), reversed(digests), strict=True):
        start = starts_of(np.diff(ends, prepend=0))
        levels.append(Level(np.diff(start)[current], found[current]))
        _, places = gather(start, current)
        current = inner[places]
    return Tree(order[current], levels[::-1], digest)
