"""The least memory in which a nested sequence can run a join, to the byte (S Lemma 2 for unit
sizes)."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from schemas.sequence import Operation
from stages.combine.chain.least import Bytes, Least
from stages.combine.chain.table import cell
from stages.combine.join.branches import Join
from stages.combine.join.states import (
    Choice,
    Moment,
    State,
    States,
    kept_before,
    nested,
    passed_from,
    with_branch,
)


class JoinLeast:
    """The least bytes of what is left in every state, `join.held` not counted and plain inputs
    counted: the recursion of `table` with the largest need in place of the time, and no slots."""

    def __init__(self, join: Join) -> None:
        self.join = join
        self.states = States(join)
        self.least = [Least(links) if len(links) else None for links in join.branches]
        self.bytes = self._fill()

    @property
    def budget(self) -> int:
        """The smallest budget for the whole join in bytes, `join.held` counted."""
        return int(self.bytes[self._start]) + self.join.held

    def sequence(self) -> list[Operation]:
        """A nested sequence within the smallest budget."""
        return nested(self.states, int(self.bytes[self._start]), self._choice, self._segment)

    @property
    def _start(self) -> State:
        return tuple(0 for _ in self.states.shape)

    def _fill(self) -> Bytes:
        self.bytes = np.zeros(self.states.shape, dtype=np.int64)
        for state in self.states.all():
            if self.states.at_loss(state):
                self.bytes[state] = self.states.loss_need(state)
            else:
                self.bytes[state] = min(int(needs.min()) for _, _, needs in self._needs(state))
        return self.bytes

    def _needs(self, state: State) -> Iterator[tuple[int, Moment, Bytes]]:
        """By branch what each way of its position needs, and then each split."""
        for k, moment in self.states.moments(state):
            least = self.least[k]
            if least is not None:
                ways = self._ways(state, k, moment, least)
                splits = self._splits(state, k, moment, least)
                yield k, moment, np.concatenate([ways, splits])

    def _ways(self, state: State, k: int, moment: Moment, least: Least) -> Bytes:
        own = moment.forward_backward(self.states.branches[k])
        inner = self.bytes[with_branch(state, k, kept_before(moment.position + 1))]
        return np.maximum(own, moment.plain + least.save[moment.position] + inner)

    def _splits(self, state: State, k: int, moment: Moment, least: Least) -> Bytes:
        branch, s = self.states.branches[k], moment.position
        inner = self.bytes[passed_from(state, k, s)]
        begin = cell(branch.length, s, s)
        tails = least.bytes[begin : begin + branch.length - s + 1]
        needs = np.maximum(moment.passing(branch), moment.plain + inner)
        return np.maximum(needs, moment.others + moment.plain + tails)

    def _choice(self, state: State, room: int) -> Choice:
        """What needs least; of what needs as little, what comes first."""
        k, moment, needs = min(self._needs(state), key=lambda found: int(found[2].min()))
        at = int(needs.argmin())
        branch = self.states.branches[k]
        ways = branch.links.at(moment.position).ways
        if at < len(ways):
            shift = moment.plain + ways[at].save
            return Choice(k, ways[at].option, 0, room - shift, 0)
        split = moment.position + at - len(ways)
        back = room - moment.others - moment.plain
        return Choice(k, 0, split, room - moment.plain, back)

    def _segment(self, k: int, s: int, t: int, room: int) -> list[Operation]:
        least = self.least[k]
        return least.segment(s, t, room) if least is not None else []
