"""Cuts a graph that is in a file into blocks, and into a hierarchy of clusters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from tightfit.util.command_line import LineageEntry
from tightfit.util.errors import ConfigError
from tightfit.util.progress import StageProgress

if TYPE_CHECKING:
    from tightfit.schemas.blocks import Blocks
    from tightfit.schemas.costs import Costs
    from tightfit.schemas.graph.training_graph import Graph
    from tightfit.schemas.hierarchy import Hierarchy

HIERARCHY_LIMITS = {
    "nodes": (20, "nodes of a lowest cluster"),
    "clusters": (20, "clusters of a cluster"),
    "top": (40, "clusters of the whole"),
    "levels": (16, "levels of clusters"),
}
"""The limits of a hierarchy: the most of what, by default."""


@dataclass(frozen=True)
class PartitionTask:
    """A graph with its costs, and the files to write: `blocks`, their `chain`, a `hierarchy`; None
    for those that are not wanted. `limits` are those of the hierarchy that differ from
    `HIERARCHY_LIMITS`, `alpha` is the weight of length in its score."""

    stage: ClassVar[str] = "partition"
    graph: Path
    costs: Path
    blocks: Path | None = None
    chain: Path | None = None
    hierarchy: Path | None = None
    partitioner: str = "cuts"
    limits: Mapping[str, int] = field(default_factory=dict)
    alpha: float = 0.5

    @property
    def all_limits(self) -> dict[str, int]:
        """All limits of the hierarchy."""
        return {name: most for name, (most, _) in HIERARCHY_LIMITS.items()} | dict(self.limits)

    def run(self, progress: StageProgress) -> tuple[Blocks | None, Hierarchy | None]:
        """Writes what is wanted and returns the blocks and the hierarchy."""
        from tightfit.schemas.costs import read_costs
        from tightfit.schemas.graph.training_graph import read_graph

        if self.blocks is None and self.hierarchy is None and self.chain is None:
            raise ConfigError(
                "nothing to write: name a file for blocks (--out), for a --chain or for a "
                "--hierarchy"
            )
        graph, costs = read_graph(self.graph), read_costs(self.costs)
        cuts = self.blocks is not None or self.chain is not None
        blocks = self._write_blocks(graph, costs) if cuts else None
        if self.hierarchy is None:
            return blocks, None
        return blocks, self._write_hierarchy(self.hierarchy, graph, costs)

    def _write_blocks(self, graph: Graph, costs: Costs) -> Blocks:
        from tightfit.schemas.blocks import write_blocks
        from tightfit.schemas.chain import write_chain
        from tightfit.stages.partition.block_chain import build_block_chain, get_partitioner

        blocks = get_partitioner(self.partitioner)(graph, costs)
        if self.blocks is not None:
            write_blocks(self.blocks, blocks)
        if self.chain is not None:
            write_chain(self.chain, build_block_chain(graph, blocks))
        return blocks

    def _write_hierarchy(self, path: Path, graph: Graph, costs: Costs) -> Hierarchy:
        from tightfit.schemas.hierarchy import write_hierarchy
        from tightfit.stages.partition.hierarchy.arrays import HierarchyLimits
        from tightfit.stages.partition.hierarchy.build import build_hierarchy

        hierarchy = build_hierarchy(graph, costs, HierarchyLimits(**self.all_limits), self.alpha)
        write_hierarchy(path, hierarchy)
        return hierarchy

    def lineage_entries(self) -> list[LineageEntry]:
        """What `run` made of what."""
        read = [self.graph, self.costs]
        found = []
        if blocks := [path for path in (self.blocks, self.chain) if path is not None]:
            found.append(LineageEntry(blocks, read, {"partitioner": self.partitioner}))
        if self.hierarchy is not None:
            settings = {**self.all_limits, "alpha": self.alpha}
            found.append(LineageEntry([self.hierarchy], read, settings))
        return found
