"""Checks that the blocks and options of a step say what it costs: its plans are made of them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from tightfit.schemas.blocks import Block, Blocks
from tightfit.schemas.errors import ArtifactError
from tightfit.schemas.frontier import ROUNDING
from tightfit.schemas.graph import NONE
from tightfit.schemas.options import Option
from tightfit.schemas.problem import Node, Problem
from tightfit.stages.replay.block import BlockRun, simulate


def check_blocks(chain: Blocks, problem: Problem, where: str) -> None:
    """Raises ArtifactError where a block runs an op that the step lacks, or at another cost."""
    nodes = {node.op: node for node in problem.nodes}
    for part in (chain, *chain.branches):
        for block in part.blocks:
            for op, local in _ops(block, part.distinct[block.digest]):
                node = nodes.get(op)
                if node is None:
                    raise ArtifactError(
                        f"{where}: the blocks run ops that are none of the graph's: make them of it"
                    )
                if _cost(local, part.distinct[block.digest]) != _cost(node, problem):
                    raise ArtifactError(
                        f"{where}: op {op} takes {local.seconds:g} s and {local.peak:,} bytes in "
                        f"the blocks, and by the costs {node.seconds:g} s and {node.peak:,} bytes: "
                        "make the blocks with these costs, and their options"
                    )


def check_options(
    problems: Mapping[str, Problem], options: Mapping[str, Sequence[Option]], where: str
) -> None:
    """Raises ArtifactError where an option of a block runs nodes that the block lacks, in an order
    that it cannot run in, or costs something else than it says."""
    for digest, problem in problems.items():
        for option in options.get(digest, []):
            what = f"{where}: option {option.option} of block {digest[:12]}"
            _check_nodes(option, problem, what)
            run = BlockRun(tuple(option.forward), tuple(option.backward))
            try:
                found = simulate(problem, run)
            except ValueError as error:
                raise ArtifactError(f"{what} cannot be run, {error}") from error
            # What is computed again later keeps the states that it draws from.
            states = 0 if option.option else problem.state_bytes * _draws(problem)
            sizes = (found.save + states, found.forward_peak + states, found.backward_peak)
            output = sum(problem.nodes[node].form(True).seconds for node in option.output_only)
            times = (found.forward_seconds, found.backward_seconds, output)
            said = (option.save, option.forward_peak, option.backward_peak)
            taken = (option.forward_seconds, option.backward_seconds, option.output_seconds)
            if said != sizes or not all(map(_close, taken, times)):
                raise ArtifactError(
                    f"{what} says {_figures(said, taken)}, and replays to {_figures(sizes, times)}"
                )


def _ops(block: Block, problem: Problem) -> Iterator[tuple[int, Node]]:
    """The ops of a block with their nodes, but for its own loss."""
    for op, node in zip([*block.forward, NONE, *block.backward], problem.nodes, strict=True):
        if node.phase != "loss":
            yield op, node


def _cost(node: Node, problem: Problem) -> tuple[float, int]:
    """The seconds of a node, and its bytes beside what it makes, of which a block may not count
    all."""
    return node.seconds, node.peak - sum(problem.storages[s].bytes for s in node.outputs)


def _check_nodes(option: Option, problem: Problem, what: str) -> None:
    last = max([*option.forward, *option.backward], default=0)
    if last >= len(problem.nodes):
        raise ArtifactError(f"{what} runs node {last}, the block has {len(problem.nodes)}")
    made = {s for node in problem.nodes[: problem.loss] for s in node.outputs}
    if not made.issuperset(option.leaves):
        raise ArtifactError(f"{what} lets leave what the forward of the block does not make")


def _draws(problem: Problem) -> int:
    return sum(node.random for node in problem.nodes[: problem.loss])


def _close(one: float, other: float) -> bool:
    return math.isclose(one, other, rel_tol=ROUNDING)


def _figures(sizes: Sequence[int], times: Sequence[float]) -> str:
    """Sizes and times of an option in words."""
    bytes_of = ", ".join(f"{size:,}" for size in sizes)
    return f"{bytes_of} bytes and {', '.join(f'{time:g}' for time in times)} s"
