"""The command `partition`: graph and costs to blocks."""

from __future__ import annotations

import argparse
from pathlib import Path

from schemas.made import Made


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's options."""
    parser.add_argument("--graph", type=Path, required=True, help="the traced graph")
    parser.add_argument("--costs", type=Path, required=True, help="the costs of its ops")
    parser.add_argument("--partitioner", default="cuts", help="how to cut, by name: cuts")
    parser.add_argument("--out", type=Path, required=True, help="the blocks to write")


def run(options: argparse.Namespace) -> None:
    """Reads graph and costs, writes the blocks and prints how many there are."""
    from schemas.blocks import write_blocks
    from schemas.costs import read_costs
    from schemas.graph import read_graph
    from stages.partition.registry import partitioner

    partition = partitioner(options.partitioner)
    blocks = partition(read_graph(options.graph), read_costs(options.costs))
    write_blocks(options.out, blocks)
    print(f"{blocks.model}: {len(blocks.blocks)} blocks, {len(blocks.distinct)} distinct")


def made(options: argparse.Namespace) -> list[Made]:
    """What `run` made of what."""
    settings = {"partitioner": options.partitioner}
    return [Made([options.out], [options.graph, options.costs], settings)]
