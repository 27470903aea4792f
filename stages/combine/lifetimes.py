"""When each storage of a sequence of executions is used for the last time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from schemas.problem import Problem


@dataclass(frozen=True)
class Lifetimes:
    """Per position of a sequence: `dying` input storages, `unused` output storages, and the storage
    that the node `overwrites` in place (-1: none). All of them are gone after the position."""

    dying: list[list[int]]
    unused: list[list[int]]
    overwrites: list[int]


def lifetimes(problem: Problem, sequence: Sequence[int], in_place: bool) -> Lifetimes:
    """The ends of all storages when each is freed right after its last use before it is made again.

    `sequence` holds positions of nodes in the problem. Held storages and gradients never end. With
    `in_place`, a node overwrites the first of its reusable inputs that ends there.
    """
    used_later = {
        index for index, storage in enumerate(problem.storages) if storage.held or storage.gradient
    }
    dying: list[list[int]] = [[] for _ in sequence]
    unused: list[list[int]] = [[] for _ in sequence]
    overwrites = [-1] * len(sequence)
    for position in range(len(sequence) - 1, -1, -1):
        node = problem.nodes[sequence[position]]
        unused[position] = [storage for storage in node.outputs if storage not in used_later]
        used_later.difference_update(node.outputs)
        dying[position] = [storage for storage in node.inputs if storage not in used_later]
        used_later.update(node.inputs)
        if in_place:
            ends = (reuse.storage for reuse in node.reuses if reuse.storage in dying[position])
            overwrites[position] = next(ends, -1)
    return Lifetimes(dying, unused, overwrites)
