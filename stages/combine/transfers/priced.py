"""A step in which what has left can be made again for a price: a form of its maker that reads
nothing and takes the price of its bytes.

So the search that decides what is run again (`stages.combine.polish`) decides together with it what
is brought back instead. A price a byte stands for the time of the link that others could use
(Lagrange relaxation of its capacity).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from schemas.problem import Node, Problem, Repeat

PART = 8
"""Outputs of less than this part of the largest one stay."""


@dataclass(frozen=True)
class Priced:
    """The problem with prices, and by node the storages that its further runs bring back."""

    problem: Problem
    brings: dict[int, list[int]]


def priced(problem: Problem, leaving: Collection[int], price: float) -> Priced:
    """A problem in which makers of storages that may be `leaving` bring these back for `price`
    seconds a byte, where running again takes longer or may not be."""
    nodes, brings = list(problem.nodes), {}
    for position, node in enumerate(problem.nodes):
        storages = _brought(problem, node, leaving)
        size = sum(problem.storages[storage].bytes for storage in storages)
        if storages and price * size < own_seconds(node):
            brings[position] = storages
            form = Repeat([], storages, price * size, size)
            pinned = node.random or not node.repeatable
            nodes[position] = replace(node, repeat=form, repeatable=True, random=pinned)
    return Priced(replace(problem, nodes=nodes), brings)


def rates(problem: Problem, leaving: Collection[int]) -> list[tuple[float, int]]:
    """What the makers of what may leave take to run again, in seconds a byte, and the bytes; in
    rising order, those left out that may not."""
    found = []
    for node in problem.nodes:
        storages = _brought(problem, node, leaving)
        size = sum(problem.storages[storage].bytes for storage in storages)
        if storages and node.repeatable:
            found.append((own_seconds(node) / size, size))
    return sorted(found)


def own_seconds(node: Node) -> float:
    """The seconds of a further run, infinite where there may be none."""
    return node.form(True).seconds if node.repeatable else float("inf")


def parted(
    found: Priced, sequence: Sequence[int]
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


def _brought(problem: Problem, node: Node, leaving: Collection[int]) -> list[int]:
    outputs = [storage for storage in node.outputs if storage in leaving]
    largest = max((problem.storages[storage].bytes for storage in outputs), default=0)
    return [s for s in outputs if problem.storages[s].bytes * PART >= largest]
