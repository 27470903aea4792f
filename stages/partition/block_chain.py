"""From a graph and its costs to the chain of its blocks."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Protocol

from tightfit.schemas.blocks import Block, Blocks
from tightfit.schemas.chain import Chain, ChainPosition
from tightfit.schemas.costs import Costs
from tightfit.schemas.graph.planning_graph import PlanningGraph
from tightfit.schemas.graph.training_graph import NO_VALUE, Graph
from tightfit.stages.partition.block_problem import (
    BlockDivision,
    describe_block,
    divide_into_blocks,
)
from tightfit.stages.partition.cuts import find_segments
from tightfit.stages.partition.gradient_flow import (
    GradientFlow,
    analyze_gradient_flow,
    common_module_path,
)
from tightfit.stages.partition.joins import branch_problem, find_branches
from tightfit.stages.simulate.liveness import simulate_executions
from tightfit.stages.simulate.planning_graph import build_planning_graph
from tightfit.util.command_line import find_registered


def partition_step(graph: Graph, costs: Costs) -> Blocks:
    """The step as a chain of blocks, equal blocks sharing one problem, with the branches of a join.

    A model that is no sequence is one block.
    """
    problem = build_planning_graph(graph, costs, ordered=False)
    facts = analyze_gradient_flow(graph, problem)
    branches = [
        _partition_chain(graph, analyze_gradient_flow(graph, branch_problem(problem, branch)))
        for branch in find_branches(facts)
    ]
    return replace(_partition_chain(graph, facts), branches=branches)


def _partition_chain(graph: Graph, facts: GradientFlow) -> Blocks:
    """The chain of a step, or of a branch as a step of its own."""
    problem = facts.problem
    segments = find_segments(facts)
    division = divide_into_blocks(facts, segments)
    distinct: dict[str, PlanningGraph] = {}
    blocks = []
    for index in range(len(division.blocks)):
        block, local = describe_block(division, index)
        distinct[block.digest] = local
        blocks.append(replace(block, label=_block_label(graph, facts, division, index)))
    loss = problem.nodes[problem.loss]
    prelude = sorted(segments.prelude)
    return Blocks(
        model=graph.model,
        prelude=[problem.nodes[position].op for position in prelude],
        prelude_seconds=sum(problem.nodes[position].seconds for position in prelude),
        held_bytes=sum(problem.storages[storage].bytes for storage in division.always_resident),
        loss=loss.op,
        loss_seconds=loss.seconds,
        loss_peak=loss.peak
        - sum(problem.storages[s].bytes for s in loss.outputs if s in division.always_resident),
        blocks=_number_labels(blocks),
        distinct=distinct,
    )


def _block_label(graph: Graph, facts: GradientFlow, division: BlockDivision, index: int) -> str:
    """The submodule that a block's forward comes from, and the part of it with most nodes, the
    slowest where several have as many."""
    forward = division.blocks[index].forward
    common = common_module_path(facts.modules[position] for position in forward)
    parts: dict[str, tuple[int, float]] = {}
    for position in forward:
        for part in facts.modules[position][len(common) : len(common) + 1]:
            count, seconds = parts.get(part, (0, 0.0))
            parts[part] = (count + 1, seconds + facts.problem.nodes[position].seconds)
    largest = [max(parts, key=lambda part: parts[part])] if parts else []
    return ".".join([*common, *largest]) or graph.model


def _number_labels(blocks: list[Block]) -> list[Block]:
    """Numbers the labels that occur more than once."""
    count = Counter(block.label for block in blocks)
    seen: Counter[str] = Counter()
    result = []
    for block in blocks:
        seen[block.label] += 1
        suffix = f" ({seen[block.label]})" if count[block.label] > 1 else ""
        result.append(replace(block, label=block.label + suffix))
    return result


class Partitioner(Protocol):
    """A way to cut a step into blocks."""

    def __call__(self, graph: Graph, costs: Costs) -> Blocks:
        """The blocks of a step, equal ones sharing one problem."""


CUTS = "cuts"
PARTITIONERS: dict[str, Partitioner] = {CUTS: partition_step}
"""A new one is a line here."""


def get_partitioner(name: str) -> Partitioner:
    """The partitioner of that name; raises ConfigError when there is none."""
    return find_registered("partitioner", name, PARTITIONERS)


LOSS_LABEL = "loss"
"""The label of the last position."""


def build_block_chain(graph: Graph, blocks: Blocks) -> Chain:
    """The chain of a model: position i is block i - 1, labeled with its digest, the last is the
    loss.

    Times and sizes are those of a step that runs every op once. Parameters that several blocks read
    count in each of them. What every block may read (`Blocks.held_bytes`) no position counts, the
    seconds of the prelude count in the first.
    """
    inputs = {graph.values[value].storage for value in graph.inputs if value != NO_VALUE}
    rows: list[ChainPosition] = []
    before = blocks.blocks[0].outgoing_bytes if blocks.blocks else 0
    delta_0 = before
    for number, block in enumerate(blocks.blocks, start=1):
        row = _block_position(graph, blocks.distinct[block.digest], block, number, before)
        rows.append(row)
        before = row.delta
    if rows:
        first = rows[0]
        rows[0] = ChainPosition(**{**vars(first), "u_f": first.u_f + blocks.prelude_seconds})
    loss = ChainPosition(
        position=len(rows) + 1,
        u_f=0.0,
        u_b=blocks.loss_seconds,
        a=0,
        abar=0,
        delta=0,
        o_f=0,
        o_b=blocks.loss_peak,
        weight=0,
        grad=0,
        label=LOSS_LABEL,
    )
    return Chain([*rows, loss], sum(graph.storages[storage] for storage in inputs), delta_0)


def _block_position(
    graph: Graph, problem: PlanningGraph, block: Block, number: int, before: int
) -> ChainPosition:
    """A block as it was captured; `before` is the size of the gradient of its input."""
    runs = simulate_executions(problem, range(len(problem.nodes)), in_place=False)
    loss = problem.loss
    kept = max(runs[loss].before, block.output_bytes)
    forward = max((run.peak for run in runs[:loss]), default=0)
    backward = max((run.peak for run in runs[loss + 1 :]), default=0)
    grad = max(block.gradient_bytes, 0)
    return ChainPosition(
        position=number,
        u_f=sum(run.seconds for run in runs[:loss]),
        u_b=sum(run.seconds for run in runs[loss + 1 :]),
        a=block.output_bytes,
        abar=kept,
        delta=block.incoming_bytes,
        o_f=max(forward - kept, 0),
        o_b=max(backward - kept - block.incoming_bytes - before - grad, 0),
        weight=_parameter_bytes(graph, block),
        grad=grad,
        label=block.digest,
    )


def _parameter_bytes(graph: Graph, block: Block) -> int:
    """The bytes of the parameters that the ops of a block read, or that it reads through views."""
    maker = {
        value: op
        for op in graph.ops
        if graph.is_view(op)
        for value in op.outputs
        if value != NO_VALUE
    }
    read: set[int] = set()
    pending = [value for op in block.forward for value in graph.ops[op].inputs]
    while pending:
        value = pending.pop()
        if graph.values[value].kind == "parameter":
            read.add(graph.values[value].storage)
        elif value in maker:
            pending += maker[value].inputs
    return sum(graph.storages[storage] for storage in read)
