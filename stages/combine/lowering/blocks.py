"""From a sequence of blocks to the ops that it runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from tightfit.schemas.actions import Action, Compute, ComputeLoss
from tightfit.schemas.block_options import BlockOption
from tightfit.schemas.blocks import Blocks
from tightfit.schemas.graph.planning_graph import PlanningGraph, PlanningNode
from tightfit.schemas.sequence import NO_OPTION, ChainOperation, iterate_with_next
from tightfit.stages.combine.chain.options import find_block_options, keep_all_option
from tightfit.stages.combine.strategies.strategy import Candidate, PlanningProblem


def build_candidate(
    step: PlanningProblem, sequence: list[ChainOperation], origin: str
) -> Candidate:
    """The candidate that a sequence of the blocks of a step is."""
    executions = lower_to_executions(step.problem, step.blocks, step.options, sequence)
    return Candidate(run_actions(step.problem, executions), sequence, origin)


def lower_to_executions(
    problem: PlanningGraph,
    blocks: Blocks,
    options: Mapping[str, list[BlockOption]],
    sequence: Sequence[ChainOperation],
) -> list[int]:
    """The op ids that run, in order, recomputations repeated; `problem` is the whole step.

    The prelude comes first. F_ck and F_none run option 0, F_all the option that keeps everything.
    What only frees runs nothing: opening frees what nothing reads any more. A forward that its
    backward follows at once leaves out what only its output needs, and no op runs again that must
    run once or whose outputs the caller holds anyway.
    """
    writer = _ExecutionWriter(problem, blocks)
    for _, action, after in iterate_with_next(sequence):
        if action.action == "loss":
            writer.run([blocks.loss])
            continue
        if action.move == "free":
            continue
        block = blocks.blocks[action.block - 1]
        rows = find_block_options(options, block.digest)
        if action.action in ("F_ck", "F_none"):
            writer.run(block.ops(rows[0].forward))
        elif action.action == "B":
            writer.backward(action.block)
        else:
            option = keep_all_option(rows) if action.option == NO_OPTION else rows[action.option]
            writer.forward(action.block, option, at_once=after == ChainOperation("B", action.block))
    return writer.executions


def run_actions(problem: PlanningGraph, executions: Sequence[int]) -> list[Action]:
    """The actions that run ops, the loss among them; `problem` is the whole step."""
    loss = problem.nodes[problem.loss].op
    return [ComputeLoss(op) if op == loss else Compute(op) for op in executions]


def captured_options(
    blocks: Blocks, options: Mapping[str, list[BlockOption]]
) -> dict[str, list[BlockOption]]:
    """The options of running each block as it was captured: option 0, and keeping everything."""
    found = {}
    for block in blocks.blocks:
        kept = keep_all_option(find_block_options(options, block.digest))
        forward = list(range(len(block.forward)))
        backward = list(range(len(forward) + 1, len(forward) + 1 + len(block.backward)))
        nothing = replace(kept, option=0, forward=forward, backward=[])
        everything = replace(kept, option=1, forward=forward, backward=backward)
        found[block.digest] = [nothing, everything]
    return found


class _ExecutionWriter:
    """Lists executions; `kept` is the option that each position's next backward belongs to."""

    def __init__(self, problem: PlanningGraph, blocks: Blocks) -> None:
        self.blocks = blocks.blocks
        self.executions = list(blocks.prelude)
        self.ran = set(blocks.prelude)
        self.kept: dict[int, BlockOption] = {}
        held = [node.op for node in problem.nodes if _is_caller_owned(problem, node)]
        self.once = {*held, *(op for block in blocks.blocks for op in block.once)}

    def run(self, ops: Sequence[int]) -> None:
        """Runs ops, without those that have run and must not run again."""
        wanted = [op for op in ops if not (op in self.ran and op in self.once)]
        self.executions += wanted
        self.ran.update(wanted)

    def forward(self, position: int, option: BlockOption, at_once: bool) -> None:
        left_out = set(option.output_only) if at_once else set()
        nodes = [node for node in option.forward if node not in left_out]
        self.run(self.blocks[position - 1].ops(nodes))
        self.kept[position] = option

    def backward(self, position: int) -> None:
        self.run(self.blocks[position - 1].ops(self.kept.pop(position).backward))


def _is_caller_owned(problem: PlanningGraph, node: PlanningNode) -> bool:
    return bool(node.outputs) and all(problem.storages[storage].held for storage in node.outputs)
