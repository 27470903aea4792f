"""Plays a sequence on a chain, on paper: the simulator of plans that come from a chain alone."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass

from tightfit.schemas.sequence import NO_OPTION, ChainOperation, StoredItem, iterate_with_next
from tightfit.stages.combine.chain.options import ChainProblem, PositionOption
from tightfit.stages.combine.join.problem import JoinProblem
from tightfit.util.errors import ScheduleError


@dataclass(frozen=True)
class ChainSimulation:
    """`seconds` of all actions, `peak` in bytes with the chain's input counted, and how many
    forwards ran again (`recomputed`)."""

    seconds: float
    peak: int
    recomputed: int


def simulate_chain(ways: ChainProblem, sequence: Sequence[ChainOperation]) -> ChainSimulation:
    """Time and peak of a sequence at true sizes (S Table 2.1, with options Z 2.5).

    Any valid sequence is played, persistent or not. Raises ScheduleError naming the step when an
    action reads what is not there, or when not every backward has run at the end.
    """
    player = ChainSimulator(ways)
    for step, action, following in iterate_with_next(sequence):
        player.play(step, action, following)
    if player.gradient != 0:
        raise ScheduleError(f"the sequence ends before B {player.gradient}")
    return ChainSimulation(player.seconds, player.peak, player.recomputed)


class ChainSimulator:
    """Plays the operations of a chain, or of one branch of a join.

    A player knows what is stored: outputs (0 is the chain's input, held), kept ways by position,
    parameter gradients (together `stored` bytes), and the gradient of the output of position
    `gradient`. That position is above the last one until the loss of a join has run. `beside` are
    the bytes of other branches.
    """

    def __init__(self, ways: ChainProblem) -> None:
        self.ways = ways
        self.outputs = {0}
        self.kept: dict[int, PositionOption] = {}
        self.stored = ways.always_resident
        self.beside = 0
        self.gradient = len(ways) if ways.loss else len(ways) + 1
        self.seconds = ways.first_seconds
        self.peak = 0
        self.recomputed = 0
        self.ran: set[int] = set()

    def delta(self) -> int:
        """The bytes of the gradient that the next backward consumes."""
        return self.ways.at(self.gradient).delta if 0 < self.gradient <= len(self.ways) else 0

    def size(self, store: StoredItem) -> int:
        """The bytes of what is stored, in a chain without options."""
        kept, position = store
        if kept:
            return self.ways.at(position).ways[0].save
        return self.ways.at(position).output if position else self.ways.always_resident

    def play(self, step: int, action: ChainOperation, following: ChainOperation | None) -> None:
        """Plays one operation; `following` is the next one of all branches."""
        where = f"step {step} ({action})"
        last = len(self.ways)
        loss = self.ways.loss_position
        if not 1 <= action.block <= last or (action.action == "loss" and action.block != loss):
            raise ScheduleError(f"{where} is on no position of the chain")
        if action.action == "B":
            self._backward(action.block, where)
        elif action.action == "loss":
            self._forward(where, action, self._way(action), None)
            self._backward(action.block, where)
        elif action.move == "free":
            self._free(where, action)
        elif action.action in ("F_all", "F"):
            self._forward(where, action, self._way(action), following)
        else:
            self._pass_on(where, action)

    def _way(self, action: ChainOperation) -> PositionOption:
        if action.action == "loss":
            return self.ways.at(action.block).ways[0]
        return self.ways.way(action.block, action.option)

    def _forward(
        self,
        where: str,
        action: ChainOperation,
        way: PositionOption,
        following: ChainOperation | None,
    ) -> None:
        """A forward that keeps what the backward needs; `following` is the next action."""
        position = action.block
        self._reads(where, position, plain=False)
        self._makes(where, position, self.kept)
        at_once = following == ChainOperation("B", position, NO_OPTION, action.branch)
        at_once = at_once and position != self.ways.loss_position
        if way.at_once and not at_once:
            raise ScheduleError(f"{where} keeps nothing, and B {position} does not follow at once")
        self._reaches(self.stored + self.delta() + way.forward_peak)
        self.seconds += way.forward_seconds - (way.output_seconds if at_once else 0.0)
        self.kept[position] = way
        self.stored += way.save

    def _pass_on(self, where: str, action: ChainOperation) -> None:
        """A forward that keeps its input (F_ck) or nothing (F_none)."""
        position, one = action.block, self.ways.at(action.block)
        drops = action.action == "F_none"
        self._reads(where, position, plain=drops)
        self._makes(where, position, self.outputs)
        written = self.ways.at(position - 1).output if drops and position > 1 else 0
        self._reaches(self.stored + self.delta() + one.pass_peak - written * one.in_place)
        self.seconds += one.pass_seconds
        self.outputs.add(position)
        self.stored += one.output
        if drops:
            self._forget(position - 1)

    def _backward(self, position: int, where: str) -> None:
        if self.gradient != position:
            after = f"B {self.gradient}" if self.gradient <= len(self.ways) else "the loss"
            raise ScheduleError(f"{where} comes before {after}")
        if position not in self.kept:
            raise ScheduleError(f"{where} reads what no forward has kept")
        self._reads(where, position, plain=False)
        way = self.kept.pop(position)
        self.stored -= way.save
        self._reaches(self.stored + way.backward_peak)
        self.seconds += way.backward_seconds
        self.stored += self.ways.at(position).gradient
        self._forget(position - 1)
        self.gradient = position - 1
        if self.gradient == 0:
            self.stored -= self.ways.released

    def _free(self, where: str, action: ChainOperation) -> None:
        """An output goes, or what was kept for a backward."""
        kept, position = action.store
        if not kept and position in self.outputs:
            self._forget(position)
        elif kept and position in self.kept:
            self.stored -= self.kept.pop(position).save
        else:
            raise ScheduleError(f"{where} frees what is not there")

    def turn(self, where: str) -> None:
        """The loss of a join has run: its inputs go, the gradient of the last output is there."""
        last = len(self.ways)
        self._reads(where, last + 1, plain=False)
        self._forget(last)
        self.gradient = last
        if last == 0:
            self.stored -= self.ways.released

    def _forget(self, position: int) -> None:
        if position in self.outputs and position > 0:
            self.outputs.remove(position)
            self.stored -= self.ways.at(position).output

    def _reads(self, where: str, position: int, plain: bool) -> None:
        there = position - 1 in self.outputs or position == 1
        if not there and (plain or position - 1 not in self.kept):
            raise ScheduleError(f"{where} reads an input that is not there")

    def _makes(self, where: str, position: int, there: Container[int]) -> None:
        if position > self.gradient:
            raise ScheduleError(f"{where} comes after B {position}")
        if position in there:
            raise ScheduleError(f"{where} makes what is already there")
        self.recomputed += position in self.ran
        self.ran.add(position)

    def _reaches(self, size: int) -> None:
        self.peak = max(self.peak, size + self.beside)


def simulate_join(join: JoinProblem, sequence: Sequence[ChainOperation]) -> ChainSimulation:
    """Time and peak of a sequence at true sizes; every operation but the loss names its branch.

    Any valid sequence is played, nested or not. Raises ScheduleError naming the step when an
    operation reads what is not there, or when not every backward has run at the end.
    """
    simulator = _JoinSimulator(join)
    for step, action, following in iterate_with_next(sequence):
        simulator.play(step, action, following)
    return simulator.result()


class _JoinSimulator:
    """The players of the branches, and what the loss adds: `stored` bytes, its gradient at first,
    later those of its parameters."""

    def __init__(self, join: JoinProblem) -> None:
        self.join = join
        self.players = [ChainSimulator(branch) for branch in join.branches]
        self.stored = join.loss.delta
        self.turned = False
        self.seconds = 0.0
        self.peak = 0

    def play(self, step: int, action: ChainOperation, following: ChainOperation | None) -> None:
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

    def result(self) -> ChainSimulation:
        for branch, player in enumerate(self.players, start=1):
            if not self.turned or player.gradient:
                missing = f"B {player.gradient} of branch {branch}" if self.turned else "the loss"
                raise ScheduleError(f"the sequence ends before {missing}")
        return ChainSimulation(
            self.seconds + sum(player.seconds for player in self.players),
            max(self.peak, *(player.peak for player in self.players)),
            sum(player.recomputed for player in self.players),
        )
