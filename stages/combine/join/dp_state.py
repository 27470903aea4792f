"""What is left of a join, as its dynamic programs see it.

A nested sequence stores something of one branch at a time, going forward, and what it stored last
it uses first, coming back. A state is what is left in between: for each branch the first position
that has stored nothing, and whether the input of this position is plain, that is stored for it
alone. What is stored for positions before is not counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import product
from math import prod

import numpy as np

from tightfit.schemas.sequence import ChainOperation
from tightfit.stages.combine.array_types import IntArray
from tightfit.stages.combine.chain.discretize import SegmentMemory
from tightfit.stages.combine.chain.dp_table import checkpoint_operations, position_operations
from tightfit.stages.combine.chain.options import ChainProblem
from tightfit.stages.combine.join.problem import JoinProblem
from tightfit.util.errors import ArtifactError

JoinState = tuple[int, ...]
"""For each branch 0 at its beginning; 2 (s - 1) where it has come to position s, whose input is
plain; 2 (s - 1) - 1 where the input belongs to what position s - 1 keeps."""


def position_of_state(state: int) -> int:
    """The first position of a branch that has stored nothing."""
    return (state + 1) // 2 + 1


def state_with_kept_input(position: int) -> int:
    """The state of a branch that has come to a position whose input is kept."""
    return 2 * (position - 1) - 1


def state_with_plain_input(position: int) -> int:
    """The state of a branch that has come to a position whose input is plain."""
    return 2 * (position - 1)


@dataclass(frozen=True)
class JoinBranch:
    """Sizes of a branch in bytes, by state: its `plain` input, and what it leaves `after` all that
    is left of it has run backward (gradients, less what it gives back). `passing[s]` are the needs
    of passing on from s to r, by r = s..L; `forward[s]` and `backward[s]` those of the ways of s,
    with the parameter gradients of positions after s."""

    ways: ChainProblem
    needs: SegmentMemory
    plain: list[int]
    after: list[int]
    passing: dict[int, IntArray]
    forward: dict[int, IntArray]
    backward: dict[int, IntArray]

    @property
    def length(self) -> int:
        """The positions."""
        return len(self.ways)


def build_join_branch(ways: ChainProblem) -> JoinBranch:
    """The sizes of a branch."""
    needs = SegmentMemory(ways)
    plain, after = [0], [int(needs.later_gradients[0]) - ways.released]
    for position in range(2, len(ways) + 2):
        before = ways.at(position - 1)
        plain += [0, before.output]
        after += [before.delta + int(needs.later_gradients[position - 1])] * 2
    forward, backward = {}, {}
    for s, one in enumerate(ways.positions, start=1):
        forward[s] = np.array([way.forward_peak for way in one.ways], dtype=np.int64)
        peaks = np.array([way.backward_peak for way in one.ways], dtype=np.int64)
        backward[s] = peaks + needs.later_gradients[s]
    return JoinBranch(ways, needs, plain, after, dict(needs.passing()), forward, backward)


@dataclass(frozen=True)
class BranchState:
    """A state seen from one branch, in bytes.

    `flagged` are the plain inputs of all branches and the gradient of the loss, which are there
    while what is left runs forward. `others` is what the other branches leave while the branch runs
    backward as the last one. `plain` is the branch's own input.
    """

    position: int
    forward_resident: int
    others: int
    plain: int

    def option_memory(self, branch: JoinBranch) -> IntArray:
        """What each way of the position needs while its forward and its backward run."""
        forward, backward = branch.forward[self.position], branch.backward[self.position]
        return np.maximum(self.forward_resident + forward, self.others + self.plain + backward)

    def passing(self, branch: JoinBranch) -> IntArray:
        """What passing on from the position needs, by last position."""
        return self.forward_resident + branch.passing[self.position]


MAX_JOIN_STATES = 250_000


class JoinStateSpace:
    """The states of a join, in an order in which those that come later are seen first.

    Raises ArtifactError where there are too many: their number is the product of the branches'
    lengths, nearly twice each.
    """

    def __init__(self, join: JoinProblem) -> None:
        self.join = join
        self.shape = tuple(2 * len(ways) + 1 for ways in join.branches)
        if len(self) > MAX_JOIN_STATES:
            lengths = ", ".join(str(len(ways)) for ways in join.branches)
            raise ArtifactError(
                f"branches of {lengths} positions are too long to be planned as a join, whose "
                f"program has {len(self)} states; up to {MAX_JOIN_STATES} are taken"
            )
        self.branches = [build_join_branch(ways) for ways in join.branches]

    def __len__(self) -> int:
        return prod(self.shape)

    def all(self) -> Iterator[JoinState]:
        """All states, each after those that can follow it."""
        return product(*(range(size - 1, -1, -1) for size in self.shape))

    def at_loss(self, state: JoinState) -> bool:
        """Whether nothing is left but the loss."""
        return all(
            position_of_state(q) > branch.length
            for branch, q in zip(self.branches, state, strict=True)
        )

    def loss_need(self, state: JoinState) -> int:
        """The bytes that the loss needs."""
        plain = sum(b.plain[q] for b, q in zip(self.branches, state, strict=True))
        way, loss = self.join.turn, self.join.loss
        return plain + max(loss.delta + way.forward_peak, way.backward_peak)

    def branch_states(self, state: JoinState) -> Iterator[tuple[int, BranchState]]:
        """The branches that something is left of and that may go on, with what they see."""
        plain = [b.plain[q] for b, q in zip(self.branches, state, strict=True)]
        after = [b.after[q] for b, q in zip(self.branches, state, strict=True)]
        flagged = sum(plain) + self.join.loss.delta
        others = sum(after) + self.join.loss.gradient
        for k, (branch, q) in enumerate(zip(self.branches, state, strict=True)):
            if position_of_state(q) <= branch.length:
                yield k, BranchState(position_of_state(q), flagged, others - after[k], plain[k])
                if self.join.ordered:
                    return

    def sizes(self) -> tuple[list[int], list[int]]:
        """All sizes that are stored, and all others that memory is compared with."""
        stored = [size for branch in self.branches for size in branch.needs.stored()]
        loss, way = self.join.loss, self.join.turn
        others = [loss.delta, loss.gradient, way.forward_peak, way.backward_peak]
        for branch in self.branches:
            others += [*branch.needs.other_sizes(), *branch.after]
        return stored, others


def advance_branch(state: JoinState, k: int, q: int) -> JoinState:
    """A state in which one branch has come further."""
    return (*state[:k], q, *state[k + 1 :])


def states_after_passing(state: JoinState, k: int, position: int) -> tuple[int | slice, ...]:
    """The states in which one branch has passed on from a position to r, for all r from there."""
    return (*state[:k], slice(state_with_plain_input(position + 1), None, 2), *state[k + 1 :])


@dataclass(frozen=True)
class NestedStep:
    """What a nested sequence stores first of what is left: of branch `k` a way of its position (by
    option number) where `split` is 0, else the output of `split`, which it passes on to. `room` is
    what remains for the rest, `back` what the backward up to the split may use at its end."""

    k: int
    option: int
    split: int
    room: int
    back: int


def build_nested_sequence(
    states: JoinStateSpace,
    room: int,
    choose: Callable[[JoinState, int], NestedStep],
    segment: Callable[[int, int, int, int], list[ChainOperation]],
) -> list[ChainOperation]:
    """The nested sequence of the choices: `choose` gives that of a state with its room, `segment`
    the operations of positions s..r of a branch, in a room."""
    state: JoinState = tuple(0 for _ in states.shape)
    forward: list[ChainOperation] = []
    backward: list[list[ChainOperation]] = []
    while not states.at_loss(state):
        choice = choose(state, room)
        position = position_of_state(state[choice.k])
        if choice.split:
            before = checkpoint_operations(position, choice.split)
            after = segment(choice.k, position, choice.split, choice.back)
            q = state_with_plain_input(choice.split + 1)
        else:
            steps = position_operations(position, choice.option, 0, [])
            before, after = (
                [step for step in part if isinstance(step, ChainOperation)]
                for part in (steps[:1], steps[1:])
            )
            q = state_with_kept_input(position + 1)
        forward += [replace(step, branch=choice.k + 1) for step in before]
        backward.append([replace(step, branch=choice.k + 1) for step in after])
        state, room = advance_branch(state, choice.k, q), choice.room
    loss = ChainOperation("loss", max(branch.length for branch in states.branches) + 1)
    return [*forward, loss, *(step for steps in reversed(backward) for step in steps)]
