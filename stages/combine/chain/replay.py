"""Plays a sequence on a chain, on paper: the referee of plans that come from a chain alone."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass

from schemas.errors import ScheduleError
from schemas.sequence import NO_OPTION, Operation
from stages.combine.chain.links import Links, Way


@dataclass(frozen=True)
class ChainReplay:
    """`seconds` of all actions, `peak` in bytes with the chain's input counted, and how many
    forwards ran again (`recomputed`)."""

    seconds: float
    peak: int
    recomputed: int


def chain_replay(links: Links, sequence: Sequence[Operation]) -> ChainReplay:
    """Time and peak of a sequence at true sizes (S Table 2.1, with options Z 2.5).

    Any valid sequence is played, persistent or not. Raises ScheduleError naming the step when an
    action reads what is not there, or when not every backward has run at the end.
    """
    player = _Player(links)
    for step, action in enumerate(sequence):
        following = sequence[step + 1] if step + 1 < len(sequence) else None
        player.play(step, action, following)
    if player.gradient != 0:
        raise ScheduleError(f"the sequence ends before B {player.gradient}")
    return ChainReplay(player.seconds, player.peak, player.recomputed)


class _Player:
    """What is stored: outputs (0 is the chain's input, held), kept ways by position, parameter
    gradients (together `stored` bytes), and the gradient of the output of position `gradient`."""

    def __init__(self, links: Links) -> None:
        self.links = links
        self.outputs = {0}
        self.kept: dict[int, Way] = {}
        self.stored = links.held
        self.gradient = len(links)
        self.seconds = links.first_seconds
        self.peak = 0
        self.recomputed = 0
        self.ran: set[int] = set()

    def delta(self) -> int:
        return self.links.at(self.gradient).delta if self.gradient else 0

    def play(self, step: int, action: Operation, following: Operation | None) -> None:
        where = f"step {step} ({action})"
        last = len(self.links)
        if not 1 <= action.block <= last or (action.action == "loss" and action.block != last):
            raise ScheduleError(f"{where} is on no position of the chain")
        if action.action == "B":
            self.backward(action.block, where)
        elif action.action == "loss":
            self.forward(where, action, self.way(action), None)
            self.backward(action.block, where)
        elif action.action in ("F_all", "F"):
            self.forward(where, action, self.way(action), following)
        else:
            self.pass_on(where, action)

    def way(self, action: Operation) -> Way:
        if action.action == "loss":
            return self.links.at(action.block).ways[0]
        return self.links.way(action.block, action.option)

    def forward(self, where: str, action: Operation, way: Way, following: Operation | None) -> None:
        """A forward that keeps what the backward needs; `following` is the next action."""
        position = action.block
        self.reads(where, position, plain=False)
        self.makes(where, position, self.kept)
        self.reaches(self.stored + self.delta() + way.forward_peak)
        at_once = following == Operation("B", position, NO_OPTION) and position < len(self.links)
        self.seconds += way.forward_seconds - (way.output_seconds if at_once else 0.0)
        self.kept[position] = way
        self.stored += way.save

    def pass_on(self, where: str, action: Operation) -> None:
        """A forward that keeps its input (F_ck) or nothing (F_none)."""
        position, link = action.block, self.links.at(action.block)
        self.reads(where, position, plain=action.action == "F_none")
        self.makes(where, position, self.outputs)
        self.reaches(self.stored + self.delta() + link.pass_peak)
        self.seconds += link.pass_seconds
        self.outputs.add(position)
        self.stored += link.output
        if action.action == "F_none":
            self.forget(position - 1)

    def backward(self, position: int, where: str) -> None:
        if self.gradient != position:
            raise ScheduleError(f"{where} comes before B {self.gradient}")
        if position not in self.kept:
            raise ScheduleError(f"{where} reads what no forward has kept")
        self.reads(where, position, plain=False)
        way = self.kept.pop(position)
        self.stored -= way.save
        self.reaches(self.stored + way.backward_peak)
        self.seconds += way.backward_seconds
        self.stored += self.links.at(position).gradient
        self.forget(position - 1)
        self.gradient = position - 1

    def forget(self, position: int) -> None:
        if position in self.outputs and position > 0:
            self.outputs.remove(position)
            self.stored -= self.links.at(position).output

    def reads(self, where: str, position: int, plain: bool) -> None:
        there = position - 1 in self.outputs or position == 1
        if not there and (plain or position - 1 not in self.kept):
            raise ScheduleError(f"{where} reads an input that is not there")

    def makes(self, where: str, position: int, there: Container[int]) -> None:
        if position > self.gradient:
            raise ScheduleError(f"{where} comes after B {position}")
        if position in there:
            raise ScheduleError(f"{where} makes what is already there")
        self.recomputed += position in self.ran
        self.ran.add(position)

    def reaches(self, size: int) -> None:
        self.peak = max(self.peak, size)
