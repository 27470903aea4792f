"""Gradients that arrive in parts: one owner, several values, which autograd adds up.

The first contribution is what becomes `.grad`; each further one is added to it as soon as it is
handed over, in the order of `Graph.gradients`, and is then gone. The owner's gradient is complete
when its first contribution leaves.
"""

from __future__ import annotations

import itertools

from tightfit.schemas.graph import Graph


def contributions(graph: Graph) -> dict[int, list[int]]:
    """By owner, the values whose sum is its gradient, in the order in which they are added."""
    found: dict[int, list[int]] = {}
    for gradient in graph.gradients:
        found.setdefault(gradient.value, []).append(gradient.gradient)
    return found


def further_contributions(graph: Graph) -> dict[int, int]:
    """By contribution that is not its owner's first, the one before it."""
    return {
        value: before
        for parts in contributions(graph).values()
        for before, value in itertools.pairwise(parts)
    }


def contributors(graph: Graph) -> dict[int, set[int]]:
    """By op that makes a further contribution, the others that make the ones right before. All of
    these run once, and in this order."""
    further = further_contributions(graph)
    if not further:
        return {}
    kept = [op for op in graph.ops if not graph.is_view(op)]
    maker = {storage: op.id for op in kept for storage in graph.made_by(op)}
    found: dict[int, set[int]] = {}
    for value, before in further.items():
        later, earlier = (maker.get(graph.values[each].storage) for each in (value, before))
        if later is not None and earlier is not None and later != earlier:
            found.setdefault(later, set()).add(earlier)
    return found
