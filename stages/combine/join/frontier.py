"""The plans of a join from most to least memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from tightfit.schemas.sequence import ChainOperation
from tightfit.stages.combine.chain.dp_table import position_operations, segment_row
from tightfit.stages.combine.chain.frontier import MinMemory, ProgramFrontier
from tightfit.stages.combine.chain.min_memory import Bytes, ChainMinMemory
from tightfit.stages.combine.chain.options import ChainProblem
from tightfit.stages.combine.chain.simulate import ChainSimulation, simulate_join
from tightfit.stages.combine.join.dp_state import (
    BranchState,
    JoinState,
    JoinStateSpace,
    NestedStep,
    advance_branch,
    build_nested_sequence,
    state_with_kept_input,
    states_after_passing,
)
from tightfit.stages.combine.join.dp_table import JoinTable, build_join_table, has_exact_join_slots
from tightfit.stages.combine.join.problem import JoinProblem
from tightfit.util.strategies import BUDGET_SLOTS


class JoinMinMemory:
    """The least bytes of what is left in every state, `join.throughout` not counted and plain
    inputs counted: the recursion of `table` with the largest need in place of the time,
    and no slots."""

    def __init__(self, join: JoinProblem) -> None:
        self.join = join
        self.states = JoinStateSpace(join)
        self.least = [ChainMinMemory(ways) if len(ways) else None for ways in join.branches]
        self.bytes = self._fill()

    @property
    def budget(self) -> int:
        """The smallest budget for the whole join in bytes, `join.throughout` counted."""
        return int(self.bytes[self._start]) + self.join.always_resident

    def sequence(self) -> list[ChainOperation]:
        """A nested sequence within the smallest budget."""
        return build_nested_sequence(
            self.states, int(self.bytes[self._start]), self._choice, self._segment
        )

    @property
    def _start(self) -> JoinState:
        return tuple(0 for _ in self.states.shape)

    def _fill(self) -> Bytes:
        self.bytes = np.zeros(self.states.shape, dtype=np.int64)
        for state in self.states.all():
            if self.states.at_loss(state):
                self.bytes[state] = self.states.loss_need(state)
            else:
                self.bytes[state] = min(int(needs.min()) for _, _, needs in self._needs(state))
        return self.bytes

    def _needs(self, state: JoinState) -> Iterator[tuple[int, BranchState, Bytes]]:
        """By branch what each way of its position needs, and then each split."""
        for k, seen in self.states.branch_states(state):
            least = self.least[k]
            if least is not None:
                ways = self._ways(state, k, seen, least)
                splits = self._splits(state, k, seen, least)
                yield k, seen, np.concatenate([ways, splits])

    def _ways(self, state: JoinState, k: int, seen: BranchState, least: ChainMinMemory) -> Bytes:
        own = seen.option_memory(self.states.branches[k])
        inner = self.bytes[advance_branch(state, k, state_with_kept_input(seen.position + 1))]
        return np.maximum(own, seen.plain + least.save[seen.position] + inner)

    def _splits(self, state: JoinState, k: int, seen: BranchState, least: ChainMinMemory) -> Bytes:
        branch, s = self.states.branches[k], seen.position
        inner = self.bytes[states_after_passing(state, k, s)]
        begin = segment_row(branch.length, s, s)
        tails = least.bytes[begin : begin + branch.length - s + 1]
        needs = np.maximum(seen.passing(branch), seen.plain + inner)
        return np.maximum(needs, seen.others + seen.plain + tails)

    def _choice(self, state: JoinState, room: int) -> NestedStep:
        """What needs least; of what needs as little, what comes first."""
        k, seen, needs = min(self._needs(state), key=lambda found: int(found[2].min()))
        at = int(needs.argmin())
        branch = self.states.branches[k]
        ways = branch.ways.at(seen.position).ways
        if at < len(ways):
            shift = seen.plain + ways[at].save
            return NestedStep(k, ways[at].option, 0, room - shift, 0)
        split = seen.position + at - len(ways)
        back = room - seen.others - seen.plain
        return NestedStep(k, 0, split, room - seen.plain, back)

    def _segment(self, k: int, s: int, t: int, room: int) -> list[ChainOperation]:
        least = self.least[k]
        return least.segment(s, t, room) if least is not None else []


@dataclass(frozen=True)
class JoinProgram:
    """The dynamic program of a join."""

    join: JoinProblem
    kind: str = "nested"

    @property
    def always_resident(self) -> int:
        """The bytes that tables do not count."""
        return self.join.always_resident

    @property
    def positions(self) -> int:
        """The positions of all branches, and the loss."""
        return len(self.join)

    def keep_all(self) -> list[ChainOperation]:
        """The sequence that runs nothing again."""
        return keep_all_join_sequence(self.join)

    def least(self) -> MinMemory:
        """The smallest budget with its sequence."""
        return JoinMinMemory(self.join)

    def table(self, limit: int, slots: int, optimistic: bool = False) -> JoinTable:
        """The table of all budgets up to `limit` bytes, in at most `slots` slots."""
        return build_join_table(self.join, limit, slots, optimistic)

    def has_exact_slots(self, limit: int, slots: int) -> bool:
        """Whether such a table rounds nothing."""
        return has_exact_join_slots(self.join, limit, slots)

    def simulate(self, sequence: list[ChainOperation]) -> ChainSimulation:
        """Time and peak of a sequence at true sizes."""
        return simulate_join(self.join, sequence)


MAX_JOIN_TABLE_SIZE = 20_000_000
"""Numbers of a table, slots by states; where there would be more, it has fewer slots."""


class JoinFrontier(ProgramFrontier):
    """The plans of a join."""

    def __init__(self, join: JoinProblem, slots: int = BUDGET_SLOTS) -> None:
        super().__init__(
            JoinProgram(join), min(slots, MAX_JOIN_TABLE_SIZE // len(JoinStateSpace(join)))
        )


def keep_all_join_sequence(join: JoinProblem) -> list[ChainOperation]:
    """Every position once, one branch after the other, the last one back first."""
    forward: list[ChainOperation] = []
    backward: list[ChainOperation] = []
    for branch, ways in enumerate(join.branches, start=1):
        ahead, back = keep_all_branch_operations(ways)
        forward += [replace(step, branch=branch) for step in ahead]
        backward = [*(replace(step, branch=branch) for step in back), *backward]
    loss = ChainOperation("loss", max(map(len, join.branches)) + 1)
    return [*forward, loss, *backward]


def keep_all_branch_operations(
    ways: ChainProblem,
) -> tuple[list[ChainOperation], list[ChainOperation]]:
    """Each position in its fastest way, before and after the loss; its output alone is kept where
    the backward has to follow at once."""
    forward: list[ChainOperation] = []
    backward: list[list[ChainOperation]] = []
    for position, one in enumerate(ways.positions, start=1):
        way = min(one.ways, key=lambda way: (way.seconds, way.save))
        steps = position_operations(position, way.option, 0, [])
        ahead, back = (step for step in steps if isinstance(step, ChainOperation))
        forward.append(ChainOperation("F_ck", position) if way.at_once else ahead)
        backward.append([ahead, back] if way.at_once else [back])
    return forward, [step for steps in reversed(backward) for step in steps]
