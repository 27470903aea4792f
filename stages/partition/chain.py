"""From a graph and its costs to the chain of its blocks."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from tightfit.schemas.blocks import Block, Blocks
from tightfit.schemas.costs import Costs
from tightfit.schemas.graph import Graph
from tightfit.schemas.problem import Problem
from tightfit.stages.partition.cuts import find_segments
from tightfit.stages.partition.facts import Facts, common_path, gather_facts
from tightfit.stages.partition.joins import branch_problem, find_branches
from tightfit.stages.partition.local import Division, describe_block, divide
from tightfit.stages.replay.condense import condense


def partition(graph: Graph, costs: Costs) -> Blocks:
    """The step as a chain of blocks, equal blocks sharing one problem, with the branches of a join.

    A model that is no sequence is one block.
    """
    problem = condense(graph, costs, ordered=False)
    facts = gather_facts(graph, problem)
    branches = [
        _chain(graph, gather_facts(graph, branch_problem(problem, branch)))
        for branch in find_branches(facts)
    ]
    return replace(_chain(graph, facts), branches=branches)


def _chain(graph: Graph, facts: Facts) -> Blocks:
    """The chain of a step, or of a branch as a step of its own."""
    problem = facts.problem
    segments = find_segments(facts)
    division = divide(facts, segments)
    distinct: dict[str, Problem] = {}
    blocks = []
    for index in range(len(division.blocks)):
        block, local = describe_block(division, index)
        distinct[block.digest] = local
        blocks.append(replace(block, label=_label(graph, facts, division, index)))
    loss = problem.nodes[problem.loss]
    prelude = sorted(segments.prelude)
    return Blocks(
        model=graph.model,
        prelude=[problem.nodes[position].op for position in prelude],
        prelude_seconds=sum(problem.nodes[position].seconds for position in prelude),
        held_bytes=sum(problem.storages[storage].bytes for storage in division.throughout),
        loss=loss.op,
        loss_seconds=loss.seconds,
        loss_peak=loss.peak
        - sum(problem.storages[s].bytes for s in loss.outputs if s in division.throughout),
        blocks=_distinguish(blocks),
        distinct=distinct,
    )


def _label(graph: Graph, facts: Facts, division: Division, index: int) -> str:
    """The submodule that a block's forward comes from, and the part of it with most nodes, the
    slowest where several have as many."""
    forward = division.blocks[index].forward
    home = common_path(facts.modules[position] for position in forward)
    parts: dict[str, tuple[int, float]] = {}
    for position in forward:
        for part in facts.modules[position][len(home) : len(home) + 1]:
            count, seconds = parts.get(part, (0, 0.0))
            parts[part] = (count + 1, seconds + facts.problem.nodes[position].seconds)
    largest = [max(parts, key=lambda part: parts[part])] if parts else []
    return ".".join([*home, *largest]) or graph.model


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
