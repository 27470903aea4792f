"""The gaps of a sequence without transfers: when is something stored that nothing uses?"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tightfit.schemas.sequence import Operation, Store, with_next
from tightfit.stages.combine.chain.replay import ChainPlayer
from tightfit.stages.combine.chain.ways import Ways


@dataclass(frozen=True)
class Gap:
    """What is stored from step `made` on (-1: from the beginning), `size` bytes, and not used by
    any of the steps `first` .. `last`, but before and after them."""

    store: Store
    size: int
    made: int
    first: int
    last: int


@dataclass(frozen=True)
class Computation:
    """A sequence without transfers: the bytes that each step `needs` in all, its `seconds`, the
    first step after the forwards (`turn`, the backward of the loss), and its gaps in the order in
    which they begin."""

    steps: list[Operation]
    needs: list[int]
    seconds: list[float]
    turn: int
    gaps: list[Gap]

    @property
    def peak(self) -> int:
        """The most bytes of any step."""
        return max(self.needs)


def computation(ways: Ways, sequence: Iterable[Operation]) -> Computation:
    """Plays a sequence and looks for its gaps; the loss is played as a forward and a backward.

    Raises ScheduleError where the sequence is not valid.
    """
    steps = apart(sequence)
    watched = _Watched(ways)
    needs, seconds = [], []
    for index, step, following in with_next(steps):
        before, watched.peak = watched.seconds, 0
        watched.index = index
        watched.play(index, step, following)
        watched.look()
        needs.append(max(watched.peak, watched.stored + watched.delta()))
        seconds.append(watched.seconds - before)
    last = ways.loss_position
    turn = steps.index(Operation("B", last))
    gaps = sorted(watched.gaps, key=lambda gap: (gap.first, gap.made, gap.store))
    return Computation(steps, needs, seconds, turn, gaps)


def apart(sequence: Iterable[Operation]) -> list[Operation]:
    """The sequence with the loss as a forward and a backward, so that transfers fit between."""
    steps: list[Operation] = []
    for action in sequence:
        if action.action == "loss":
            steps += [Operation("F_all", action.block), Operation("B", action.block)]
        else:
            steps.append(action)
    return steps


def together(sequence: Sequence[Operation], loss: int) -> list[Operation]:
    """The sequence with the loss in one where nothing is between its forward and its backward."""
    steps: list[Operation] = []
    for action in sequence:
        if steps and action == Operation("B", loss) and steps[-1] == Operation("F_all", loss):
            steps[-1] = Operation("loss", loss)
        else:
            steps.append(action)
    return steps


class _Watched(ChainPlayer):
    """A player that notes when what is stored was made and last used."""

    def __init__(self, ways: Ways) -> None:
        super().__init__(ways)
        self.index = -1
        self.made: dict[Store, int] = {(False, 0): -1}
        self.used: dict[Store, int] = {(False, 0): -1}
        self.gaps: list[Gap] = []

    def look(self) -> None:
        """Notes what a step made and what it ended."""
        there = {(False, position) for position in self.outputs}
        there |= {(True, position) for position in self.kept}
        for store in there - set(self.made):
            self.made[store] = self.used[store] = self.index
        for store in set(self.made) - there:
            if self.used[store] != self.index:
                self._uses(store)
            del self.made[store], self.used[store]

    def _uses(self, store: Store) -> None:
        first, last = self.used[store] + 1, self.index - 1
        if first <= last:
            self.gaps.append(Gap(store, self._size(store), self.made[store], first, last))
        self.used[store] = self.index

    def _size(self, store: Store) -> int:
        kept, position = store
        if kept:
            return self.ways.at(position).ways[0].save
        return self.ways.at(position).output if position else self.ways.throughout

    def _reads(self, where: str, position: int, plain: bool) -> None:
        super()._reads(where, position, plain)
        output, kept = (False, position - 1), (True, position - 1)
        self._uses(output if output in self.made else kept)

    def _backward(self, position: int, where: str) -> None:
        if (True, position) in self.made:
            self._uses((True, position))
        super()._backward(position, where)
