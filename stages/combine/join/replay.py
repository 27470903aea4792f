"""Plays a sequence on a join, on paper: a player of each branch, who share the memory."""

from __future__ import annotations

from collections.abc import Sequence

from tightfit.schemas.errors import ScheduleError
from tightfit.schemas.sequence import Operation, with_next
from tightfit.stages.combine.chain.replay import ChainPlayer, ChainReplay
from tightfit.stages.combine.join.branches import Join


def join_replay(join: Join, sequence: Sequence[Operation]) -> ChainReplay:
    """Time and peak of a sequence at true sizes; every operation but the loss names its branch.

    Any valid sequence is played, nested or not. Raises ScheduleError naming the step when an
    operation reads what is not there, or when not every backward has run at the end.
    """
    referee = _Referee(join)
    for step, action, following in with_next(sequence):
        referee.play(step, action, following)
    return referee.verdict()


class _Referee:
    """The players of the branches, and what the loss adds: `stored` bytes, its gradient at first,
    later those of its parameters."""

    def __init__(self, join: Join) -> None:
        self.join = join
        self.players = [ChainPlayer(branch) for branch in join.branches]
        self.stored = join.loss.delta
        self.turned = False
        self.seconds = 0.0
        self.peak = 0

    def play(self, step: int, action: Operation, following: Operation | None) -> None:
        where = f"step {step} ({action})"
        if action.action == "loss":
            self.turn(where)
            return
        if not 1 <= action.branch <= len(self.players):
            raise ScheduleError(f"{where} is on no branch of the join")
        player = self.players[action.branch - 1]
        player.beside = self.bytes() - player.stored - player.delta()
        player.play(step, action, following)

    def bytes(self) -> int:
        """All bytes that are there between two operations."""
        return self.stored + sum(player.stored + player.delta() for player in self.players)

    def turn(self, where: str) -> None:
        if self.turned:
            raise ScheduleError(f"{where} makes what is already there")
        loss, way = self.join.loss, self.join.turn
        before = self.bytes() - self.stored
        self.peak = max(self.peak, before + loss.delta + way.forward_peak)
        self.peak = max(self.peak, before + way.backward_peak)
        for player in self.players:
            player.turn(where)
        self.seconds += way.seconds
        self.stored = loss.gradient
        self.turned = True

    def verdict(self) -> ChainReplay:
        for branch, player in enumerate(self.players, start=1):
            if not self.turned or player.gradient:
                missing = f"B {player.gradient} of branch {branch}" if self.turned else "the loss"
                raise ScheduleError(f"the sequence ends before {missing}")
        return ChainReplay(
            self.seconds + sum(player.seconds for player in self.players),
            max(self.peak, *(player.peak for player in self.players)),
            sum(player.recomputed for player in self.players),
        )
