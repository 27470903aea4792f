"""Where the ops of the backward belong in the forward."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Hashable, Sequence

from tightfit.schemas.problem import Problem


def places_of(problem: Problem, forward: Sequence[int], origin: Sequence[Hashable]) -> list[int]:
    """For each node of the backward the place in `forward`, which are nodes in an order that they
    can run in, where it belongs.

    The place is that of a node of the same origin (`origin` has one for each node of the problem)
    that reads or makes the most of what the node reads, the last one of several. What the node
    reads of the backward comes first: its place is ahead of that, where that is earlier. So along
    the reads of the backward places do not rise. Without a node of its origin it belongs where the
    last of what it reads of the backward does.
    """
    alike: dict[Hashable, list[int]] = {}
    touching: dict[tuple[Hashable, int], list[int]] = {}
    for place, node in enumerate(forward):
        alike.setdefault(origin[node], []).append(place)
        for storage in {*problem.nodes[node].inputs, *problem.nodes[node].outputs}:
            touching.setdefault((origin[node], storage), []).append(place)
    last = max(len(forward) - 1, 0)
    found: dict[int, int] = {}
    for position in range(problem.loss + 1, len(problem.nodes)):
        reads = problem.nodes[position].inputs
        makers = {problem.storages[storage].producer for storage in reads}
        highest = min((found[maker] for maker in makers if maker in found), default=last)
        near = Counter(
            place
            for storage in reads
            for place in touching.get((origin[position], storage), ())
            if place <= highest
        )
        same = alike.get(origin[position], [])
        before = bisect_right(same, highest)
        if near:
            found[position] = max(near, key=lambda place: (near[place], place))
        else:
            found[position] = same[before - 1] if before else highest
    return list(found.values())
