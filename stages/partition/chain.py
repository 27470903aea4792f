"""From a graph and its costs to the chain of its blocks."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import replace

from schemas.blocks import Block, Blocks
from schemas.costs import Costs
from schemas.graph import Graph
from schemas.problem import Problem
from stages.partition.cuts import find_segments
from stages.partition.facts import gather_facts
from stages.partition.local import Layout, describe_block, lay_out
from stages.replay.condense import condense


def partition(graph: Graph, costs: Costs) -> Blocks:
    """The step as a chain of blocks, equal blocks sharing one problem.

    A model that is no sequence is one block.
    """
    problem = condense(graph, costs)
    facts = gather_facts(graph, problem)
    segments = find_segments(facts)
    layout = lay_out(facts, segments)
    distinct: dict[str, Problem] = {}
    blocks = []
    for index in range(len(layout.blocks)):
        block, local = describe_block(layout, index)
        distinct[block.digest] = local
        blocks.append(replace(block, label=_label(graph, problem, layout, index)))
    loss = problem.nodes[problem.loss]
    prelude = sorted(segments.prelude)
    return Blocks(
        model=graph.model,
        prelude=[problem.nodes[position].op for position in prelude],
        prelude_seconds=sum(problem.nodes[position].seconds for position in prelude),
        held_bytes=sum(problem.storages[storage].bytes for storage in layout.held),
        loss=loss.op,
        loss_seconds=loss.seconds,
        loss_peak=loss.peak
        - sum(problem.storages[s].bytes for s in loss.outputs if s in layout.held),
        blocks=_distinguish(blocks),
        distinct=distinct,
    )


def _label(graph: Graph, problem: Problem, layout: Layout, index: int) -> str:
    """The submodule that a block's forward comes from, and the part of it that takes longest."""
    seconds: dict[tuple[str, ...], float] = defaultdict(float)
    for position in layout.blocks[index].forward:
        node = problem.nodes[position]
        module = graph.ops[node.op].module
        seconds[tuple(module.split(".")) if module else ()] += node.seconds
    paths = list(seconds)
    depth = 0
    while paths and all(len(path) > depth and path[depth] == paths[0][depth] for path in paths):
        depth += 1
    common = paths[0][:depth] if paths else ()
    parts: Counter[str] = Counter()
    for path, share in seconds.items():
        if len(path) > depth:
            parts[path[depth]] += share  # type: ignore[assignment]
    return ".".join([*common, *(name for name, _ in parts.most_common(1))]) or graph.model


def _distinguish(blocks: list[Block]) -> list[Block]:
    """Numbers the labels that occur more than once."""
    count = Counter(block.label for block in blocks)
    seen: Counter[str] = Counter()
    result = []
    for block in blocks:
        seen[block.label] += 1
        suffix = f" ({seen[block.label]})" if count[block.label] > 1 else ""
        result.append(replace(block, label=block.label + suffix))
    return result
