"""The plans of a join from most to least memory."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tightfit.schemas.sequence import Operation
from tightfit.schemas.strategies import SLOTS
from tightfit.stages.combine.chain.frontier import ProgramFrontier, Smallest
from tightfit.stages.combine.chain.replay import ChainReplay
from tightfit.stages.combine.chain.table import run_block
from tightfit.stages.combine.chain.ways import Ways
from tightfit.stages.combine.join.branches import Join
from tightfit.stages.combine.join.least import JoinLeast
from tightfit.stages.combine.join.replay import join_replay
from tightfit.stages.combine.join.states import JoinStates
from tightfit.stages.combine.join.table import JoinTable, build_join_table, join_rounds_nothing


@dataclass(frozen=True)
class JoinProgram:
    """The dynamic program of a join."""

    join: Join
    kind: str = "nested"

    @property
    def throughout(self) -> int:
        """The bytes that tables do not count."""
        return self.join.throughout

    @property
    def positions(self) -> int:
        """The positions of all branches, and the loss."""
        return len(self.join)

    def keep_all(self) -> list[Operation]:
        """The sequence that runs nothing again."""
        return keep_all_of_join(self.join)

    def least(self) -> Smallest:
        """The smallest budget with its sequence."""
        return JoinLeast(self.join)

    def table(self, limit: int, slots: int, optimistic: bool = False) -> JoinTable:
        """The table of all budgets up to `limit` bytes, in at most `slots` slots."""
        return build_join_table(self.join, limit, slots, optimistic)

    def rounds_nothing(self, limit: int, slots: int) -> bool:
        """Whether such a table rounds nothing."""
        return join_rounds_nothing(self.join, limit, slots)

    def replay(self, sequence: list[Operation]) -> ChainReplay:
        """Time and peak of a sequence at true sizes."""
        return join_replay(self.join, sequence)


MOST_NUMBERS = 20_000_000
"""Numbers of a table, slots by states; where there would be more, it has fewer slots."""


class JoinFrontier(ProgramFrontier):
    """The plans of a join."""

    def __init__(self, join: Join, slots: int = SLOTS) -> None:
        super().__init__(JoinProgram(join), min(slots, MOST_NUMBERS // len(JoinStates(join))))


def keep_all_of_join(join: Join) -> list[Operation]:
    """Every position once, one branch after the other, the last one back first."""
    forward: list[Operation] = []
    backward: list[Operation] = []
    for branch, ways in enumerate(join.branches, start=1):
        ahead, back = keep_all_of_branch(ways)
        forward += [replace(step, branch=branch) for step in ahead]
        backward = [*(replace(step, branch=branch) for step in back), *backward]
    loss = Operation("loss", max(map(len, join.branches)) + 1)
    return [*forward, loss, *backward]


def keep_all_of_branch(ways: Ways) -> tuple[list[Operation], list[Operation]]:
    """Each position in its fastest way, before and after the loss; its output alone is kept where
    the backward has to follow at once."""
    forward: list[Operation] = []
    backward: list[list[Operation]] = []
    for position, one in enumerate(ways.positions, start=1):
        way = min(one.ways, key=lambda way: (way.seconds, way.save))
        steps = run_block(position, way.option, 0, [])
        ahead, back = (step for step in steps if isinstance(step, Operation))
        forward.append(Operation("F_ck", position) if way.at_once else ahead)
        backward.append([ahead, back] if way.at_once else [back])
    return forward, [step for steps in reversed(backward) for step in steps]
