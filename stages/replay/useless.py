"""Further runs that a sequence can do without."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from tightfit.schemas.problem import Problem
from tightfit.stages.replay.line import forms


def without_useless(
    problem: Problem, sequence: Sequence[int], begin: int = 0, among: Collection[int] | None = None
) -> list[int]:
    """A sequence of node positions without the further runs whose results nothing reads before they
    are made again: those from the place `begin` on, and, where given, of nodes `among` some."""
    first = {node: index for index, node in reversed(list(enumerate(sequence)))}
    kept: list[int] = []
    read: set[int] = set()
    for index, form in reversed(list(enumerate(forms(problem, sequence)))):
        node = sequence[index]
        further = first[node] != index and index >= begin
        if further and (among is None or node in among) and read.isdisjoint(form.outputs):
            continue
        kept.append(node)
        read.difference_update(form.outputs)
        read.update(form.inputs)
    return kept[::-1]
