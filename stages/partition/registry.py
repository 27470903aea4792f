"""The partitioners by name."""

from __future__ import annotations

from typing import Protocol

from tightfit.schemas.blocks import Blocks
from tightfit.schemas.costs import Costs
from tightfit.schemas.graph import Graph
from tightfit.schemas.registry import entry
from tightfit.stages.partition.chain import partition


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
