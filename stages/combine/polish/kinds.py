"""Which nodes of a problem are alike, as those of equal layers are."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence

from tightfit.schemas.problem import Node, Problem, Repeat

ROUNDS = 2
"""How far around a node its neighbours have to be alike, too."""


def kinds_of(problem: Problem) -> list[int]:
    """By position the number of its kind, from 0 on: equal where nodes or alternatives cost the
    same, and so do those around them that make what they read or read what they make."""
    kinds = _numbered(_own(problem, position) for position in problem.positions)
    around = [_neighbours(problem, position) for position in problem.positions]
    for _ in range(ROUNDS):
        # Behind the kinds is that of what no node makes.
        own = [*kinds, -1]
        kinds = _numbered(
            (kind, *map(own.__getitem__, makers), *[_sorted_kinds(own, each) for each in readers])
            for kind, (makers, readers) in zip(kinds, around, strict=True)
        )
    return kinds


def _own(problem: Problem, position: int) -> Hashable:
    sizes = problem.sizes
    node = problem.nodes[problem.node_at(position)]
    first, again = (problem.form_at(position, repeated) for repeated in (False, True))
    cost = _cost(sizes, first)
    costs = cost, cost if again is first else _cost(sizes, again)
    stays = tuple(map(problem.staying.__contains__, node.outputs))
    further = problem.is_alternative(position)
    return further, node.phase, node.random, node.repeatable, stays, *costs


def _cost(sizes: Sequence[int], form: Node | Repeat) -> Hashable:
    return (
        form.seconds,
        form.peak,
        tuple(map(sizes.__getitem__, form.inputs)),
        tuple(map(sizes.__getitem__, form.outputs)),
        tuple([(reuse.seconds, reuse.peak) for reuse in form.reuses]),
    )


def _neighbours(problem: Problem, position: int) -> tuple[list[int], list[list[int]]]:
    """The nodes that make what a position reads, -1 where none does, and those that read each of
    what it makes."""
    form = problem.form_at(position, False)
    makers = [problem.storages[storage].producer for storage in form.inputs]
    return makers, [problem.readers[storage] for storage in form.outputs]


def _sorted_kinds(kinds: Sequence[int], nodes: Sequence[int]) -> Hashable:
    return tuple(sorted(map(kinds.__getitem__, nodes)))


def _numbered(marks: Iterable[Hashable]) -> list[int]:
    numbers: dict[Hashable, int] = {}
    return [numbers.setdefault(mark, len(numbers)) for mark in marks]
