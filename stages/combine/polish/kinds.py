"""Which nodes of a problem are alike, as those of equal layers are."""

from __future__ import annotations

from collections.abc import Hashable

from schemas.problem import Problem

ROUNDS = 2
"""How far around a node its neighbours have to be alike, too."""


def kinds_of(problem: Problem) -> list[int]:
    """By position the number of its kind, from 0 on: equal where nodes or alternatives cost the
    same, and so do those around them that make what they read or read what they make."""
    kinds = _numbered([_own(problem, position) for position in problem.positions])
    for _ in range(ROUNDS):
        kinds = _numbered([_around(problem, kinds, position) for position in problem.positions])
    return kinds


def _own(problem: Problem, position: int) -> Hashable:
    node = problem.nodes[problem.node_at(position)]
    forms = [problem.form_at(position, repeated) for repeated in (False, True)]
    costs = [
        (
            form.seconds,
            form.peak,
            tuple(problem.storages[storage].bytes for storage in form.inputs),
            tuple(problem.storages[storage].bytes for storage in form.outputs),
            tuple((reuse.seconds, reuse.peak) for reuse in form.reuses),
        )
        for form in forms
    ]
    stays = tuple(problem.storages[storage].stays for storage in node.outputs)
    further = problem.is_alternative(position)
    return further, node.phase, node.random, node.repeatable, stays, *costs


def _around(problem: Problem, kinds: list[int], position: int) -> Hashable:
    form = problem.form_at(position, False)
    makers = [problem.storages[storage].producer for storage in form.inputs]
    readers = [
        tuple(sorted(kinds[reader] for reader in problem.readers[storage]))
        for storage in form.outputs
    ]
    return kinds[position], tuple(kinds[m] if m >= 0 else -1 for m in makers), tuple(readers)


def _numbered(marks: list[Hashable]) -> list[int]:
    numbers: dict[Hashable, int] = {}
    return [numbers.setdefault(mark, len(numbers)) for mark in marks]
