"""The command `partition`: graph and costs to blocks, and to a hierarchy of clusters."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from tightfit.util.command_line import LineageEntry

if TYPE_CHECKING:
    from tightfit.schemas.costs import Costs
    from tightfit.schemas.graph.training_graph import Graph

HIERARCHY_LIMITS = {
    "nodes": (20, "nodes of a lowest cluster"),
    "clusters": (20, "clusters of a cluster"),
    "top": (40, "clusters of the whole"),
    "levels": (16, "levels of clusters"),
}
"""The limits of a hierarchy: the most of what, by default."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's options."""
    parser.add_argument("--graph", type=Path, required=True, help="the traced graph")
    parser.add_argument("--costs", type=Path, required=True, help="the costs of its ops")
    parser.add_argument("--partitioner", default="cuts", help="how to cut, by name: cuts")
    parser.add_argument("--out", type=Path, help="the blocks to write")
    parser.add_argument("--chain", type=Path, help="the chain of the blocks to write")
    hierarchy = parser.add_argument_group(
        "hierarchy", "Clusters of clusters of the step, for the strategies that plan with them."
    )
    hierarchy.add_argument("--hierarchy", type=Path, help="the hierarchy to write")
    for name, (most, what) in HIERARCHY_LIMITS.items():
        hierarchy.add_argument(
            f"--{name}", type=int, default=most, help=f"the most {what}, {most} by default"
        )
    hierarchy.add_argument(
        "--alpha", type=float, default=0.5, help="the weight of length in the score, 0.5 by default"
    )


def run(options: argparse.Namespace) -> None:
    """Reads graph and costs, writes what is asked for and prints how much there is of it."""
    from tightfit.schemas.costs import read_costs
    from tightfit.schemas.graph.training_graph import read_graph
    from tightfit.util.errors import ConfigError

    if options.out is None and options.hierarchy is None and options.chain is None:
        raise ConfigError(
            "nothing to write: name a file for blocks (--out), for a --chain or for a --hierarchy"
        )
    graph, costs = read_graph(options.graph), read_costs(options.costs)
    if options.out is not None or options.chain is not None:
        _write_blocks(options, graph, costs)
    if options.hierarchy is not None:
        _write_hierarchy(options, graph, costs)


def _write_blocks(options: argparse.Namespace, graph: Graph, costs: Costs) -> None:
    from tightfit.schemas.blocks import write_blocks
    from tightfit.schemas.chain import write_chain
    from tightfit.stages.partition.block_chain import build_block_chain, get_partitioner

    blocks = get_partitioner(options.partitioner)(graph, costs)
    if options.out is not None:
        write_blocks(options.out, blocks)
    if options.chain is not None:
        write_chain(options.chain, build_block_chain(graph, blocks))
    print(f"{blocks.model}: {len(blocks.blocks)} blocks, {len(blocks.distinct)} distinct")


def _write_hierarchy(options: argparse.Namespace, graph: Graph, costs: Costs) -> None:
    from tightfit.schemas.hierarchy import write_hierarchy
    from tightfit.stages.partition.hierarchy.arrays import HierarchyLimits
    from tightfit.stages.partition.hierarchy.build import build_hierarchy

    limits = HierarchyLimits(**{name: getattr(options, name) for name in HIERARCHY_LIMITS})
    hierarchy = build_hierarchy(graph, costs, limits, options.alpha)
    write_hierarchy(options.hierarchy, hierarchy)
    counts = [f"{len(t.sizes)} clusters, {len(set(t.digests))} distinct" for t in hierarchy.levels]
    print(
        f"{hierarchy.model}: {len(hierarchy.forward)} nodes; {'; '.join(counts) or 'no clusters'}"
    )


def lineage_entries(options: argparse.Namespace) -> list[LineageEntry]:
    """What `run` made of what."""
    read = [options.graph, options.costs]
    found = []
    if blocks := [path for path in (options.out, options.chain) if path is not None]:
        found.append(LineageEntry(blocks, read, {"partitioner": options.partitioner}))
    if options.hierarchy is not None:
        settings = {name: getattr(options, name) for name in (*HIERARCHY_LIMITS, "alpha")}
        found.append(LineageEntry([options.hierarchy], read, settings))
    return found
