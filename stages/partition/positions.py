"""From the blocks of a model to its chain: the figures of each block where it keeps everything."""

from __future__ import annotations

from tightfit.schemas.blocks import Block, Blocks
from tightfit.schemas.chain import Chain, Position
from tightfit.schemas.graph import NONE, Graph
from tightfit.schemas.problem import Problem
from tightfit.stages.replay.line import executions

LOSS = "loss"
"""The label of the last position."""


def chain_of_blocks(graph: Graph, blocks: Blocks) -> Chain:
    """The chain of a model: position i is block i - 1, labelled with its digest, the last is the
    loss.

    Times and sizes are those of a step that runs every op once. Parameters that several blocks read
    count in each of them. What every block may read (`Blocks.held_bytes`) no position counts, the
    seconds of the prelude count in the first.
    """
    inputs = {graph.values[value].storage for value in graph.inputs if value != NONE}
    rows: list[Position] = []
    before = blocks.blocks[0].outgoing_bytes if blocks.blocks else 0
    delta_0 = before
    for number, block in enumerate(blocks.blocks, start=1):
        row = _position(graph, blocks.distinct[block.digest], block, number, before)
        rows.append(row)
        before = row.delta
    if rows:
        first = rows[0]
        rows[0] = Position(**{**vars(first), "u_f": first.u_f + blocks.prelude_seconds})
    loss = Position(
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
        label=LOSS,
    )
    return Chain([*rows, loss], sum(graph.storages[storage] for storage in inputs), delta_0)


def _position(graph: Graph, problem: Problem, block: Block, number: int, before: int) -> Position:
    """A block as it was captured; `before` is the size of the gradient of its input."""
    runs = executions(problem, range(len(problem.nodes)), in_place=False)
    loss = problem.loss
    kept = max(runs[loss].before, block.output_bytes)
    forward = max((run.peak for run in runs[:loss]), default=0)
    backward = max((run.peak for run in runs[loss + 1 :]), default=0)
    grad = max(block.gradient_bytes, 0)
    return Position(
        position=number,
        u_f=sum(run.seconds for run in runs[:loss]),
        u_b=sum(run.seconds for run in runs[loss + 1 :]),
        a=block.output_bytes,
        abar=kept,
        delta=block.incoming_bytes,
        o_f=max(forward - kept, 0),
        o_b=max(backward - kept - block.incoming_bytes - before - grad, 0),
        weight=_weight(graph, block),
        grad=grad,
        label=block.digest,
    )


def _weight(graph: Graph, block: Block) -> int:
    """The bytes of the parameters that the ops of a block read, or that it reads through views."""
    maker = {
        value: op for op in graph.ops if graph.is_view(op) for value in op.outputs if value != NONE
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
