"""The least memory in which a nested sequence can run a join, to the byte (S Lemma 2 for unit
sizes)."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tightfit.schemas.sequence import Operation
from tightfit.stages.combine.chain.least import Bytes, Least
from tightfit.stages.combine.chain.table import cell
from tightfit.stages.combine.join.branches import Join
from tightfit.stages.combine.join.states import (
    BranchState,
    FirstStored,
    JoinState,
    JoinStates,
    kept_before,
    nested,
    passed_from,
    with_branch,
)


class JoinLeast:
    """The least bytes of what is left in every state, `join.throughout` not counted and plain
    inputs counted: the recursion of `table` with the largest need in place of the time,
    and no slots."""

    def __init__(self, join: Join) -> None:
        self.join = join
        self.states = JoinStates(join)
        self.least = [Least(ways) if len(ways) else None for ways in join.branches]
        self.bytes = self._fill()

    @property
    def budget(self) -> int:
        """The smallest budget for the whole join in bytes, `join.throughout` counted."""
        return int(self.bytes[self._start]) + self.join.throughout

    def sequence(self) -> list[Operation]:
        """A nested sequence within the smallest budget."""
        return nested(self.states, int(self.bytes[self._start]), self._choice, self._segment)

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

    def _ways(self, state: JoinState, k: int, seen: BranchState, least: Least) -> Bytes:
        own = seen.forward_backward(self.states.branches[k])
        inner = self.bytes[with_branch(state, k, kept_before(seen.position + 1))]
        return np.maximum(own, seen.plain + least.save[seen.position] + inner)

    def _splits(self, state: JoinState, k: int, seen: BranchState, least: Least) -> Bytes:
        branch, s = self.states.branches[k], seen.position
        inner = self.bytes[passed_from(state, k, s)]
        begin = cell(branch.length, s, s)
        tails = least.bytes[begin : begin + branch.length - s + 1]
        needs = np.maximum(seen.passing(branch), seen.plain + inner)
        return np.maximum(needs, seen.others + seen.plain + tails)

    def _choice(self, state: JoinState, room: int) -> FirstStored:
        """What needs least; of what needs as little, what comes first."""
        k, seen, needs = min(self._needs(state), key=lambda found: int(found[2].min()))
        at = int(needs.argmin())
        branch = self.states.branches[k]
        ways = branch.ways.at(seen.position).ways
        if at < len(ways):
            shift = seen.plain + ways[at].save
            return FirstStored(k, ways[at].option, 0, room - shift, 0)
        split = seen.position + at - len(ways)
        back = room - seen.others - seen.plain
        return FirstStored(k, 0, split, room - seen.plain, back)

    def _segment(self, k: int, s: int, t: int, room: int) -> list[Operation]:
        least = self.least[k]
        return least.segment(s, t, room) if least is not None else []
