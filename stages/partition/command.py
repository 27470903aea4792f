"""The command `partition`: graph and costs to blocks, and to a hierarchy of clusters."""

from __future__ import annotations

import argparse
from pathlib import Path

from tightfit.stages.partition.task import HIERARCHY_LIMITS, PartitionTask
from tightfit.util.command_line import LineageEntry, is_standalone
from tightfit.util.progress import StageProgress


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
    """Writes what is asked for and prints how much there is of it."""
    blocks, hierarchy = _parse_task(options).run(StageProgress())
    chain_alone = options.out is None and not is_standalone(options)
    if blocks is not None and not chain_alone:
        print(f"{blocks.model}: {len(blocks.blocks)} blocks, {len(blocks.distinct)} distinct")
    if hierarchy is not None:
        levels = hierarchy.levels
        counts = [f"{len(t.sizes)} clusters, {len(set(t.digests))} distinct" for t in levels]
        said = "; ".join(counts) or "no clusters"
        print(f"{hierarchy.model}: {len(hierarchy.forward)} nodes; {said}")


def lineage_entries(options: argparse.Namespace) -> list[LineageEntry]:
    """What `run` made of what."""
    return _parse_task(options).lineage_entries()


def _parse_task(options: argparse.Namespace) -> PartitionTask:
    return PartitionTask(
        options.graph,
        options.costs,
        options.out,
        options.chain,
        options.hierarchy,
        options.partitioner,
        {name: getattr(options, name) for name in HIERARCHY_LIMITS},
        options.alpha,
    )
