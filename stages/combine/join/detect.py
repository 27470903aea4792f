"""A model's step as a join: the branches that partition found, and the head that they meet in."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from tightfit.schemas.blocks import Block, Blocks
from tightfit.schemas.graph.planning_graph import PlanningGraph
from tightfit.schemas.sequence import NO_BRANCH, NO_OPTION, ChainOperation
from tightfit.stages.combine.chain.options import (
    PositionOption,
    PositionOptions,
    build_model_chain_problem,
)
from tightfit.stages.combine.join.problem import JoinProblem
from tightfit.stages.combine.lowering.blocks import lower_to_executions
from tightfit.stages.combine.strategies.strategy import PlanningProblem
from tightfit.stages.simulate.liveness import subset_memory


@dataclass(frozen=True)
class StepJoin:
    """The parts of a step that is a join, as positions in its problem.

    `first` runs ahead of the branches, `head` where all forwards have run, the loss among it, and
    `tail` waits for several branches. All else belongs to the blocks of the branches.
    """

    step: PlanningProblem

    @property
    def branches(self) -> list[Blocks]:
        """The branches as chains."""
        return self.step.blocks.branches

    @property
    def problem(self) -> PlanningGraph:
        """The whole step."""
        return self.step.problem

    @cached_property
    def _inside(self) -> set[int]:
        blocks = [block for chain in self.branches for block in chain.blocks]
        ops = {op for block in blocks for op in (*block.forward, *block.backward)}
        return {place for place, node in enumerate(self.problem.nodes) if node.op in ops}

    @cached_property
    def first(self) -> list[int]:
        """The forward nodes that need nothing of a branch."""
        found: list[int] = []
        for place, node in enumerate(self.problem.nodes[: self.problem.loss]):
            makers = {self.problem.storages[storage].producer for storage in node.inputs}
            if place not in self._inside and makers.issubset(found):
                found.append(place)
        return found

    @cached_property
    def tail(self) -> list[int]:
        """The backward nodes that need something of the backward of a branch."""
        late = {place for place in self._inside if place > self.problem.loss}
        found: list[int] = []
        for place in range(self.problem.loss + 1, len(self.problem.nodes)):
            node = self.problem.nodes[place]
            makers = {self.problem.storages[storage].producer for storage in node.inputs}
            if place not in self._inside and not makers.isdisjoint(late):
                late.add(place)
                found.append(place)
        return found

    @cached_property
    def head(self) -> list[int]:
        """What runs between all forwards and all backwards, in captured order."""
        others = {*self._inside, *self.first, *self.tail}
        return [place for place in range(len(self.problem.nodes)) if place not in others]

    def join(self, keep_all_only: bool = True) -> JoinProblem:
        """The join of the branches; their blocks keep everything or nothing, or run with any of
        their options."""
        chains = [
            build_model_chain_problem(chain, self.step.options, keep_all_only)
            for chain in self.branches
        ]
        branches = [replace(ways, positions=ways.positions[:-1], loss=False) for ways in chains]
        given = sum(ways.positions[-1].delta for ways in branches)
        peak, left = subset_memory(self.problem, set(self.head))
        seconds = sum(self.problem.nodes[place].seconds for place in self.head)
        turn = PositionOption(NO_OPTION, 0, 0, peak, 0.0, seconds)
        loss = PositionOptions(0, 0, max(left - given, 0), 0.0, 0, [turn])
        return JoinProblem(branches, loss, ordered=self._ordered)

    @cached_property
    def _ordered(self) -> bool:
        """Whether branches draw, write or share weights, whose order stands."""
        nodes, storages = self.problem.nodes, self.problem.storages
        branch = {
            op: number
            for number, chain in enumerate(self.branches)
            for block in chain.blocks
            for op in (*block.forward, *block.backward)
        }
        bound = {
            branch[node.op]
            for node in nodes[: self.problem.loss]
            if node.op in branch and (node.random or not node.repeatable)
        }
        across = any(
            maker >= 0 and branch.get(nodes[maker].op, own) != own
            for node in nodes
            if (own := branch.get(node.op)) is not None
            for maker in (storages[storage].producer for storage in node.inputs)
        )
        return across or len(bound) > 1

    def executions(self, sequence: list[ChainOperation]) -> list[int] | None:
        """The ops that a sequence of the join runs, as ids of the graph; None where what draws or
        writes would run in another order than captured."""
        places = self._places(sequence)
        if not self._in_order(places):
            return None
        return [self.problem.nodes[place].op for place in places]

    def _places(self, sequence: list[ChainOperation]) -> list[int]:
        """The positions that run, in order; backward nodes as soon as they can."""
        chain, offsets = self._chained
        plain = [
            replace(step, block=step.block + offsets[step.branch], branch=NO_BRANCH)
            for step in sequence
        ]
        ops = lower_to_executions(self.problem, chain, self.step.options, plain)
        position = {node.op: place for place, node in enumerate(self.problem.nodes)}
        asked: list[int] = list(self.first)
        for op in ops:
            place = position[op]
            asked += self.head if place == self.problem.loss else [place]
        return self._ready(asked)

    @cached_property
    def _chained(self) -> tuple[Blocks, dict[int, int]]:
        """The blocks of all branches in one row, and how many come before each branch's."""
        rows: list[Block] = []
        offsets = {NO_BRANCH: 0}
        for number, chain in enumerate(self.branches, start=1):
            offsets[number] = len(rows)
            rows += chain.blocks
        whole = self.step.blocks
        return replace(whole, prelude=[], blocks=rows, distinct=whole.problems), offsets

    def _ready(self, asked: list[int]) -> list[int]:
        """The nodes that are asked for and the tail, each after what it needs has run."""
        waiting = list(self.tail)
        ran: set[int] = set()
        order: list[int] = []
        for place in asked:
            if place > self.problem.loss and not self._may_run(place, ran):
                waiting.append(place)
                continue
            order.append(place)
            ran.add(place)
            while place > self.problem.loss:
                free = [late for late in waiting if self._may_run(late, ran)]
                if not free:
                    break
                order += free
                ran.update(free)
                waiting = [late for late in waiting if late not in free]
        return order + waiting

    def _may_run(self, place: int, ran: set[int]) -> bool:
        made_by = (self.problem.storages[s].producer for s in self.problem.nodes[place].inputs)
        return all(maker < 0 or maker in ran for maker in made_by)

    def _in_order(self, places: list[int]) -> bool:
        """Whether each node runs after what it needs, and what draws or writes in captured order
        and ahead of the loss."""
        ran: set[int] = set()
        last = {"draws": -1, "writes": -1}
        for place in places:
            node = self.problem.nodes[place]
            first = place not in ran
            if not self._may_run(place, ran):
                return False
            kinds = [
                kind
                for kind, bound in (("draws", node.random), ("writes", not node.repeatable))
                if bound and first and place < self.problem.loss
            ]
            if any(place < last[kind] for kind in kinds):
                return False
            last.update(dict.fromkeys(kinds, place))
            ran.add(place)
        return len(ran) == len(self.problem.nodes)
