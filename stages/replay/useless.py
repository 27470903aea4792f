"""Further runs that a sequence can do without."""

from __future__ import annotations

from collections.abc import Sequence

from schemas.problem import Problem
from stages.replay.line import forms


def without_useless(problem: Problem, sequence: Sequence[int]) -> list[int]:
    """A sequence of node positions without the further runs whose results nothing reads before they
    are made again."""
    first = {node: index for index, node in reversed(list(enumerate(sequence)))}
    kept: list[int] = []
    read: set[int] = set()
    for index, form in reversed(list(enumerate(forms(problem, sequence)))):
        node = sequence[index]
        if first[node] != index and read.isdisjoint(form.outputs):
            continue
        kept.append(node)
        read.difference_update(form.outputs)
        read.update(form.inputs)
    return kept[::-1]
