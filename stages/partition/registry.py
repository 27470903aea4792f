"""The partitioners by name."""

from __future__ import annotations

from typing import Protocol

from schemas.blocks import Blocks
from schemas.costs import Costs
from schemas.graph import Graph
from schemas.registry import entry
from stages.partition.chain import partition


class Partitioner(Protocol):
    """A way to cut a step into blocks."""

    def __call__(self, graph: Graph, costs: Costs) -> Blocks:
        """The blocks of a step, equal ones sharing one problem."""


CUTS = "cuts"
PARTITIONERS: dict[str, Partitioner] = {CUTS: partition}
"""A new one is a line here."""


def partitioner(name: str) -> Partitioner:
    """The partitioner of that name; raises ConfigError when there is none."""
    return entry("partitioner", name, PARTITIONERS)
