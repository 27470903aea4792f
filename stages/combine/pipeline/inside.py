"""What stages that compute again run, as ops of their own graphs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from tightfit.schemas.blocks import Blocks
from tightfit.schemas.graph import Graph
from tightfit.schemas.options import Option
from tightfit.schemas.problem import Problem
from tightfit.schemas.sequence import NO_BRANCH, Operation
from tightfit.stages.combine.pipeline.division import Part
from tightfit.stages.combine.schedule.executions import executions_of


def stage_executions(
    graph: Graph,
    problem: Problem,
    blocks: Blocks,
    options: Mapping[str, list[Option]],
    sequence: Sequence[Operation],
    part: Part,
) -> list[int]:
    """The ops that a stage runs, by their numbers in its own graph, for the operations of its
    sequence; `graph` and `problem` are those of the whole model.

    The forward of a stage ends with the first forward of its last position.
    """
    count = len(blocks.blocks)
    own = [
        replace(operation, branch=NO_BRANCH) for operation in sequence if operation.block <= count
    ]
    last = max((operation.block for operation in own), default=0)
    split = 1 + next(
        (
            place
            for place, operation in enumerate(own)
            if operation.block == last and operation.action.startswith("F")
        ),
        -1,
    )
    whole = [*own[:split], Operation("loss", count + 1), *own[split:]]
    runs = executions_of(problem, blocks, options, whole)[len(blocks.prelude) :]
    number = {op: place for place, op in enumerate((*part.forward, blocks.loss, *part.backward))}
    # What every stage that reads it makes anew runs ahead of all else.
    ahead = [op for op in (*part.forward, *part.backward) if op in set(blocks.prelude)]
    return [number[op] for op in _kept_once(graph, (*ahead, *runs), set(part.leaves))]


def _kept_once(graph: Graph, runs: Iterable[int], leaves: set[int]) -> list[int]:
    """The runs without further ones of ops whose outputs leave the stage, which stay."""
    found: list[int] = []
    seen: set[int] = set()
    for op in runs:
        if op not in seen or leaves.isdisjoint(graph.ops[op].outputs):
            found.append(op)
        seen.add(op)
    return found


def plain_options(blocks: Blocks) -> dict[str, list[Option]]:
    """For each block running it without keeping anything, and keeping everything."""
    found = {}
    for block in blocks.blocks:
        size = len(block.forward)
        forward, backward = range(size), range(size + 1, size + 1 + len(block.backward))
        nothing = Option(
            block.digest, 0, "", 0, 0, 0, 0.0, 0.0, 0.0, forward=[*forward], backward=[]
        )
        found[block.digest] = [nothing, replace(nothing, option=1, backward=[*backward])]
    return found
