"""The problem of one block on its own, in a form that equal blocks share."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tightfit.schemas.blocks import Block, planning_graph_digest
from tightfit.schemas.graph.planning_graph import PlanningGraph, PlanningNode, PlanningStorage
from tightfit.schemas.graph.training_graph import NO_VALUE
from tightfit.stages.partition.cuts import Segments
from tightfit.stages.partition.gradient_flow import GradientFlow
from tightfit.stages.simulate.block import SubproblemBuilder


@dataclass(frozen=True)
class BlockMembers:
    """The nodes of one block, in captured order, with what passes its borders."""

    forward: list[int]
    backward: list[int]
    inputs: list[int]
    outputs: list[int]
    incoming: list[int]
    outgoing: list[int]


@dataclass(frozen=True)
class BlockDivision:
    """A cut step: the members of each block, the forward nodes that run `once` in a step, and the
    storages that are there `throughout` as far as blocks are concerned."""

    problem: PlanningGraph
    blocks: list[BlockMembers]
    once: frozenset[int]
    always_resident: frozenset[int]


def divide_into_blocks(facts: GradientFlow, segments: Segments) -> BlockDivision:
    """Assigns nodes to blocks and finds what no block counts."""
    problem, cuts = facts.problem, segments.cuts
    readers = problem.readers
    forward = [0, *(cut.forward for cut in cuts), problem.loss]
    backward = [len(problem.nodes), *(cut.backward for cut in cuts), problem.loss + 1]
    activations = [NO_VALUE, *(cut.activation for cut in cuts), NO_VALUE]
    gradients = [NO_VALUE, *(cut.gradient for cut in cuts), NO_VALUE]
    blocks = [
        BlockMembers(
            forward=[p for p in range(forward[i], forward[i + 1]) if p not in segments.prelude],
            backward=list(range(backward[i + 1], backward[i])),
            inputs=_as_list(activations[i]),
            outputs=_as_list(activations[i + 1]),
            incoming=_as_list(gradients[i + 1]),
            outgoing=_as_list(gradients[i]),
        )
        for i in range(len(cuts) + 1)
    ]
    once = frozenset(
        position
        for block in blocks
        for position in block.forward
        if not problem.nodes[position].repeatable
        or any(problem.storages[s].held for s in problem.nodes[position].outputs)
    )
    last = set(blocks[-1].backward)
    tangents = problem.nodes[problem.loss].outputs
    early = {s for s in tangents if not last.issuperset(readers[s])}
    throughout = early | {s for s, storage in enumerate(problem.storages) if storage.held}
    for group in (segments.prelude, once):
        made = (s for position in group for s in problem.nodes[position].outputs)
        throughout |= {s for s in made if not group.issuperset(readers[s])}
    throughout |= _cross_block_storages(facts, blocks)
    throughout |= {s for block in blocks for p in block.forward for s in problem.nodes[p].lasting}
    blocks[-1].incoming.extend(s for s in tangents if s not in throughout)
    blocks[-1].outputs.extend(
        s for s in problem.nodes[problem.loss].inputs if _made_by(problem, s, blocks[-1].forward)
    )
    return BlockDivision(problem, blocks, once, frozenset(throughout))


def describe_block(division: BlockDivision, index: int) -> tuple[Block, PlanningGraph]:
    """The block `index`, but for its label, and its problem in canonical form.

    Nodes and storages are numbered in the order they appear and know no names. What the block
    does not count has no bytes: inputs, what is there throughout, gradients made elsewhere.
    """
    members, whole = division.blocks[index], division.problem
    local = _BlockProblemBuilder(division, members)
    problem = local.problem()
    made = [s for position in members.backward for s in whole.nodes[position].outputs]
    read = dict.fromkeys(s for position in members.backward for s in whole.nodes[position].inputs)
    finished = [s for s in made if whole.storages[s].gradient]
    carried = [s for s in made if local.carried(s)]
    taken = [
        s
        for s in read
        if s not in members.incoming
        and whole.storages[s].producer > whole.loss
        and whole.storages[s].producer not in local.own
        and whole.readers[s][-1] in local.own
    ]

    def size(storages: Iterable[int]) -> int:
        return sum(whole.storages[s].bytes for s in storages if s not in division.always_resident)

    def passing(storages: list[int]) -> int:
        return size(s for s in storages if not whole.storages[s].gradient)

    block = Block(
        digest=planning_graph_digest(problem),
        label="",
        forward=[whole.nodes[p].op for p in members.forward],
        backward=[whole.nodes[p].op for p in members.backward],
        once=[whole.nodes[p].op for p in members.forward if p in division.once],
        storages=list(local.part.numbers),
        inputs=members.inputs,
        outputs=members.outputs,
        incoming=members.incoming,
        outgoing=members.outgoing,
        output_bytes=size(members.outputs),
        incoming_bytes=passing(members.incoming),
        outgoing_bytes=passing(members.outgoing),
        gradient_bytes=size(finished) + size(carried) - passing(taken),
        carried_bytes=size(carried) - passing(taken),
    )
    return block, problem


class _BlockProblemBuilder:
    """Numbers the storages of one block and writes its nodes."""

    def __init__(self, division: BlockDivision, members: BlockMembers) -> None:
        self.division = division
        self.whole = division.problem
        self.members = members
        self.own = {*members.forward, *members.backward}
        self.part = SubproblemBuilder(division.problem, self.bytes_of)

    def problem(self) -> PlanningGraph:
        nodes = [self.node(position, order) for order, position in enumerate(self.members.forward)]
        nodes.append(self.between(len(nodes)))
        start = len(nodes)
        nodes += [
            self.node(position, start + order)
            for order, position in enumerate(self.members.backward)
        ]
        producer = {s: node.op for node in nodes for s in node.outputs}
        storages = [
            self.storage(storage, producer.get(number, NO_VALUE))
            for storage, number in self.part.numbers.items()
        ]
        return PlanningGraph(nodes, storages, self.whole.state_bytes)

    def node(self, position: int, order: int) -> PlanningNode:
        again = position not in self.division.once
        return self.part.node(position, order, repeatable=again, repeats=again)

    def between(self, order: int) -> PlanningNode:
        """The loss of the block: everything between its forward and its backward."""
        return PlanningNode(
            op=order,
            phase="loss",
            seconds=0.0,
            peak=sum(self.bytes_of(s) for s in self.members.incoming),
            inputs=self.part.number(self.members.outputs),
            outputs=self.part.number(self.members.incoming),
            reuses=[],
            random=False,
            repeatable=False,
        )

    def bytes_of(self, storage: int) -> int:
        """The bytes that the block counts for a storage."""
        made = self.whole.storages[storage]
        incoming = storage in self.members.incoming and not made.gradient
        counted = made.producer in self.own or incoming
        return made.bytes if counted and storage not in self.division.always_resident else 0

    def storage(self, storage: int, producer: int) -> PlanningStorage:
        made = self.whole.storages[storage]
        stays = storage in self.members.outgoing or storage in self.division.always_resident
        gradient = made.producer in self.own and (made.gradient or self.carried(storage))
        return PlanningStorage(self.bytes_of(storage), producer, stays and producer >= 0, gradient)

    def carried(self, storage: int) -> bool:
        """A contribution to a parameter's gradient that another block finishes."""
        made = self.whole.storages[storage]
        return (
            made.producer > self.whole.loss
            and not made.gradient
            and made.producer in self.own
            and storage not in self.members.outgoing
            and not self.own.issuperset(self.whole.readers[storage])
        )


def _cross_block_storages(facts: GradientFlow, blocks: list[BlockMembers]) -> set[int]:
    """What the backward of one block makes for others beside gradients."""
    waiting: set[int] = set()
    for block in blocks:
        own = set(block.backward)
        made = {s for position in block.backward for s in facts.problem.nodes[position].outputs}
        waiting |= {
            storage
            for storage in made - facts.partial - set(block.outgoing)
            if not facts.problem.storages[storage].gradient
            and not own.issuperset(facts.problem.readers[storage])
        }
    return waiting


def _as_list(storage: int) -> list[int]:
    return [] if storage == NO_VALUE else [storage]


def _made_by(problem: PlanningGraph, storage: int, positions: list[int]) -> bool:
    return bool(positions) and problem.storages[storage].producer >= positions[0]
