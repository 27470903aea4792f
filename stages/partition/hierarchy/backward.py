"""Where the ops of the backward belong in the forward."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from schemas.problem import Problem


def places_of(problem: Problem, forward: Sequence[int], origin: Sequence[Hashable]) -> list[int]:
    """For each node of the backward the place in `forward`, which are nodes in an order that they
    can run in, where it belongs.

    That is the place of a node of the same origin (`origin` has one for each node of the problem)
    that reads or makes the most of what it reads, the last one of several; but ahead of what it
    reads of the backward, where that is earlier. So along the reads of the backward places do not
    rise. Without a node of its origin it belongs where the last of what it reads of the backward
    does.
    """
    place = {node: index for index, node in enumerate(forward)}
    alike: dict[Hashable, list[int]] = {}
    for node in forward:
        alike.setdefault(origin[node], []).append(node)
    last = max(len(forward) - 1, 0)
    found: dict[int, int] = {}
    for position in range(problem.loss + 1, len(problem.nodes)):
        reads = problem.nodes[position].inputs
        makers = {problem.storages[storage].producer for storage in reads}
        highest = min((found[maker] for maker in makers if maker in found), default=last)
        best, own = -1, highest
        for node in alike.get(origin[position], ()):
            touched = {*problem.nodes[node].inputs, *problem.nodes[node].outputs}
            shared = len(touched.intersection(reads))
            if place[node] <= highest and shared >= best:
                best, own = shared, place[node]
        found[position] = own
    return list(found.values())
