"""A step in which what has left can be made again for a price: a form of its maker that reads
nothing and takes the price of its bytes.

So the search that decides what is run again (`stages.combine.local_search`) decides together with
it what is brought back instead. A price a byte stands for the time of the link that others could
use (Lagrange relaxation of its capacity)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from tightfit.schemas.graph.planning_graph import PlanningGraph, PlanningNode, RecomputeVariant
from tightfit.schemas.link import HostLink

SIZE_DIVISOR = 8
"""Outputs of less than this part of the largest one stay."""
TRANSFERS_PER_STORAGE = 2
"""What comes back was sent."""


@dataclass(frozen=True)
class PrefetchableNode:
    """A node with the storages that are brought back instead of a further run of it, their bytes,
    and what such a run takes in seconds a byte beyond the `overhead` of their transfers, infinite
    where there may be none."""

    node: int
    storages: list[int]
    size: int
    rate: float
    overhead: float = 0.0


@dataclass(frozen=True)
class PricedProblem:
    """The problem with prices, and by node the storages that its further runs bring back."""

    problem: PlanningGraph
    brings: dict[int, list[int]]


def prefetchable_nodes(
    problem: PlanningGraph, leaving: Collection[int], link: HostLink
) -> list[PrefetchableNode]:
    """The makers of what may leave, those that take the least a byte first, and of equal ones the
    last: what is made early has more time to leave."""
    found = []
    for position, node in enumerate(problem.nodes):
        storages = _prefetchable_outputs(problem, node, leaving)
        sizes = [problem.storages[storage].bytes for storage in storages]
        if size := sum(sizes):
            overhead = TRANSFERS_PER_STORAGE * sum(map(link.overhead_of, sizes))
            seconds = node.form(True).seconds if node.repeatable else float("inf")
            rate = max(seconds - overhead, 0.0) / size
            found.append(PrefetchableNode(position, storages, size, rate, overhead))
    return sorted(found, key=lambda maker: (maker.rate, -maker.node))


def price_prefetches(
    problem: PlanningGraph, chosen: Iterable[PrefetchableNode], price: float
) -> PricedProblem:
    """A problem in which some makers bring back what they made for `price` seconds a byte and the
    overhead."""
    nodes, brings = list(problem.nodes), {}
    for maker in chosen:
        node = problem.nodes[maker.node]
        form = RecomputeVariant([], maker.storages, price * maker.size + maker.overhead, maker.size)
        pinned = node.random or not node.repeatable
        nodes[maker.node] = replace(node, repeat=form, repeatable=True, random=pinned)
        brings[maker.node] = maker.storages
    return PricedProblem(problem.with_recompute_nodes(nodes), brings)


def split_prefetches(
    found: PricedProblem, sequence: Sequence[int]
) -> tuple[list[int], list[tuple[int, int]]]:
    """A sequence of the problem with prices as one of the true problem, and what it brings back:
    storages, each with the place in that sequence ahead of which it comes."""
    seen: set[int] = set()
    plain: list[int] = []
    back: list[tuple[int, int]] = []
    for node in sequence:
        if node in seen and node in found.brings:
            back += [(storage, len(plain)) for storage in found.brings[node]]
            continue
        seen.add(node)
        plain.append(node)
    return plain, back


def _prefetchable_outputs(
    problem: PlanningGraph, node: PlanningNode, leaving: Collection[int]
) -> list[int]:
    outputs = [storage for storage in node.outputs if storage in leaving]
    largest = max((problem.storages[storage].bytes for storage in outputs), default=0)
    return [s for s in outputs if problem.storages[s].bytes * SIZE_DIVISOR >= largest]
