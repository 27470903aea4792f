"""From a sequence of blocks to the ops that it runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from tightfit.schemas.actions import Action, Compute, Loss
from tightfit.schemas.blocks import Blocks
from tightfit.schemas.options import Option
from tightfit.schemas.problem import Node, Problem
from tightfit.schemas.sequence import NO_OPTION, Operation, with_next
from tightfit.stages.combine.chain.ways import keep_all, options_of
from tightfit.stages.combine.strategies.strategy import Candidate, TrainingStep


def candidate_of(step: TrainingStep, sequence: list[Operation], origin: str) -> Candidate:
    """The candidate that a sequence of the blocks of a step is."""
    executions = executions_of(step.problem, step.blocks, step.options, sequence)
    return Candidate(runs(step.problem, executions), sequence, origin)


def executions_of(
    problem: Problem,
    blocks: Blocks,
    options: Mapping[str, list[Option]],
    sequence: Sequence[Operation],
) -> list[int]:
    """The op ids that run, in order, recomputations repeated; `problem` is the whole step.

    The prelude comes first. F_ck and F_none run option 0, F_all the option that keeps everything.
    What only frees runs nothing: opening frees what nothing reads any more. A forward that its
    backward follows at once leaves out what only its output needs, and no op runs again that must
    run once or whose outputs the caller holds anyway.
    """
    writer = _Writer(problem, blocks)
    for _, action, after in with_next(sequence):
        if action.action == "loss":
            writer.run([blocks.loss])
            continue
        if action.move == "free":
            continue
        block = blocks.blocks[action.block - 1]
        rows = options_of(options, block.digest)
        if action.action in ("F_ck", "F_none"):
            writer.run(block.ops(rows[0].forward))
        elif action.action == "B":
            writer.backward(action.block)
        else:
            option = keep_all(rows) if action.option == NO_OPTION else rows[action.option]
            writer.forward(action.block, option, at_once=after == Operation("B", action.block))
    return writer.executions


def runs(problem: Problem, executions: Sequence[int]) -> list[Action]:
    """The actions that run ops, the loss among them; `problem` is the whole step."""
    loss = problem.nodes[problem.loss].op
    return [Loss(op) if op == loss else Compute(op) for op in executions]


def captured(blocks: Blocks, options: Mapping[str, list[Option]]) -> dict[str, list[Option]]:
    """The options of running each block as it was captured: option 0, and keeping everything."""
    found = {}
    for block in blocks.blocks:
        kept = keep_all(options_of(options, block.digest))
        forward = list(range(len(block.forward)))
        backward = list(range(len(forward) + 1, len(forward) + 1 + len(block.backward)))
        nothing = replace(kept, option=0, forward=forward, backward=[])
        everything = replace(kept, option=1, forward=forward, backward=backward)
        found[block.digest] = [nothing, everything]
    return found


class _Writer:
    """Lists executions; `kept` is the option that each position's next backward belongs to."""

    def __init__(self, problem: Problem, blocks: Blocks) -> None:
        self.blocks = blocks.blocks
        self.executions = list(blocks.prelude)
        self.ran = set(blocks.prelude)
        self.kept: dict[int, Option] = {}
        held = [node.op for node in problem.nodes if _held(problem, node)]
        self.once = {*held, *(op for block in blocks.blocks for op in block.once)}

    def run(self, ops: Sequence[int]) -> None:
        """Runs ops, without those that have run and must not run again."""
        wanted = [op for op in ops if not (op in self.ran and op in self.once)]
        self.executions += wanted
        self.ran.update(wanted)

    def forward(self, position: int, option: Option, at_once: bool) -> None:
        left_out = set(option.output_only) if at_once else set()
        nodes = [node for node in option.forward if node not in left_out]
        self.run(self.blocks[position - 1].ops(nodes))
        self.kept[position] = option

    def backward(self, position: int) -> None:
        self.run(self.blocks[position - 1].ops(self.kept.pop(position).backward))


def _held(problem: Problem, node: Node) -> bool:
    return bool(node.outputs) and all(problem.storages[storage].held for storage in node.outputs)
