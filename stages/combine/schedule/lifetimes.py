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
    repeated = _repeated(sequence)
    dying: list[list[int]] = [[] for _ in sequence]
    unused: list[list[int]] = [[] for _ in sequence]
    overwrites = [-1] * len(sequence)
    for position in range(len(sequence) - 1, -1, -1):
        node = problem.nodes[sequence[position]]
        inputs, outputs = node.reads(repeated[position]), node.makes(repeated[position])
        unused[position] = [storage for storage in outputs if storage not in used_later]
        used_later.difference_update(outputs)
        dying[position] = [storage for storage in inputs if storage not in used_later]
        used_later.update(inputs)
        if in_place and not (node.repeat and repeated[position]):
            ends = (reuse.storage for reuse in node.reuses if reuse.storage in dying[position])
            overwrites[position] = next(ends, -1)
    return Lifetimes(dying, unused, overwrites)


def _repeated(sequence: Sequence[int]) -> list[bool]:
    """Which executions are not their node's first."""
    seen: set[int] = set()
    repeated = []
    for node in sequence:
        repeated.append(node in seen)
        seen.add(node)
    return repeated
