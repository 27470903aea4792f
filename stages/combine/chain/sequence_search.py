"""The fastest sequence of a short chain where anything stored may be freed at any time.

S Table 2.1 knows no operation that only frees. With one, sequences can beat the optimum of all that
are made of its operations. The search goes over all that can be stored: best first, with a bound on
what is left, so that the first sequence that is complete is the fastest.
"""

from __future__ import annotations

import heapq
import itertools
import math
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from tightfit.schemas.sequence import NO_OPTION, ChainOperation, OperationKind
from tightfit.stages.combine.chain.frontier import ChainFrontier, ChainPlan, keep_all_sequence
from tightfit.stages.combine.chain.min_memory import ChainMinMemory
from tightfit.stages.combine.chain.options import ChainProblem, PositionOption, PositionOptions
from tightfit.util.errors import ConfigError

MAX_SEARCH_STATES = 200_000
"""States that a search looks at before it gives up, unless told otherwise."""
FIRST_PROGRESS_CHECK, PROGRESS_CHECK_FACTOR = 1000, 4
"""After how many states it is noted first how far a search is, and by what number of states these
notes are apart."""
EXPECTED_END_SHARE, ESTIMATE_MARGIN = 0.5, 4
"""A search is taken to end at this part of what persistent sequences run again, which is less than
it was seen to be, and goes on unless an estimate of its states is so many times what it may look
at."""


@dataclass(frozen=True)
class StoredState:
    """The positions whose outputs are stored, and the ways that are kept by position, both in
    order; `gradient` is the position whose backward is next."""

    outputs: frozenset[int]
    kept: frozenset[tuple[int, int]]
    gradient: int


@dataclass(frozen=True)
class FastestSequence:
    """The fastest sequence within a budget; None where there is none, or (`gave_up`) where the
    search ended after so many `states`, before it had looked at all."""

    sequence: list[ChainOperation] | None
    seconds: float
    gave_up: bool = False
    states: int = 0


@dataclass(frozen=True)
class _Move:
    seconds: float
    peak: int
    operations: tuple[ChainOperation, ...]
    after: StoredState


class SequenceSearch:
    """Searches the sequences of one chain."""

    def __init__(self, ways: ChainProblem) -> None:
        self.ways = ways
        self.last = ways.loss_position
        self.done = [0] * (self.last + 1)
        for position in range(self.last, 0, -1):
            self.done[position - 1] = self.done[position] + ways.at(position).gradient

    def fastest(
        self, budget: int, most: int = MAX_SEARCH_STATES, persistent: float | None = None
    ) -> FastestSequence:
        """The fastest sequence of at most `budget` bytes; `most` states are looked at. With the
        seconds of the fastest `persistent` sequence it ends sooner where it would take many times
        so many, by the pace at which it comes closer to these."""
        start = StoredState(frozenset(), frozenset(), self.last)
        seconds = {start: self.ways.first_seconds}
        reached: dict[StoredState, tuple[StoredState, tuple[ChainOperation, ...]]] = {}
        number = itertools.count()
        queue = [(seconds[start] + self.left(start), next(number), start)]
        closed: set[StoredState] = set()
        pace = _SearchProgress(queue[0][0], persistent)
        while queue:
            least, _, state = heapq.heappop(queue)
            if state.gradient == 0:
                return FastestSequence(_path_to(reached, state), seconds[state])
            if state in closed:
                continue
            closed.add(state)
            if len(closed) > most or pace.states(len(closed), least) > ESTIMATE_MARGIN * most:
                return FastestSequence(None, float("inf"), gave_up=True, states=len(closed))
            for move in self.moves(state, budget):
                total = seconds[state] + move.seconds
                if total < seconds.get(move.after, float("inf")):
                    seconds[move.after] = total
                    reached[move.after] = (state, move.operations)
                    left = self.left(move.after)
                    heapq.heappush(queue, (total + left, next(number), move.after))
        return FastestSequence(None, float("inf"))

    def left(self, state: StoredState) -> float:
        """Seconds that all ways to go on take at least: each backward that is left, and the forward
        of each that nothing is kept for."""
        kept = dict(state.kept)
        return sum(
            self.ways.at(position).ways[kept[position]].backward_seconds
            if position in kept
            else min(way.seconds - way.output_seconds for way in self.ways.at(position).ways)
            for position in range(1, state.gradient + 1)
        )

    def stored(self, state: StoredState) -> int:
        """The bytes of all that is stored, without the gradient of an output."""
        outputs = sum(self.ways.at(position).output for position in state.outputs)
        kept = sum(self.ways.at(position).ways[way].save for position, way in state.kept)
        return self.ways.always_resident + outputs + kept + self.done[state.gradient]

    def moves(self, state: StoredState, budget: int) -> Iterator[_Move]:
        """What can follow within the budget; frees where something else does not fit."""
        fitting = True
        for move in self._runs(state):
            if move.peak <= budget:
                yield move
            else:
                fitting = False
        if fitting:
            return
        for position in sorted(state.outputs):
            after = StoredState(state.outputs - {position}, state.kept, state.gradient)
            yield _Move(0.0, 0, (ChainOperation("free", position),), after)
        for position, way in sorted(state.kept):
            after = StoredState(state.outputs, state.kept - {(position, way)}, state.gradient)
            yield _Move(0.0, 0, (ChainOperation("free_all", position),), after)

    def _runs(self, state: StoredState) -> Iterator[_Move]:
        kept = dict(state.kept)
        there = self.stored(state)
        now = state.gradient
        beside = there + self.ways.at(now).delta
        for position in range(1, now + 1):
            plain = position == 1 or position - 1 in state.outputs
            if not plain and position - 1 not in kept:
                continue
            one = self.ways.at(position)
            if position == self.last:
                yield self._loss(state, one.ways[0], beside, there)
            elif position in kept:
                if position == now:
                    yield self._backward(state, position, one.ways[kept[position]], there)
            else:
                if position not in state.outputs and position < now:
                    yield from self._passes(state, position, one, beside, plain)
                yield from self._keeps(state, position, one, beside, there)

    def _passes(
        self, state: StoredState, position: int, one: PositionOptions, beside: int, plain: bool
    ) -> Iterator[_Move]:
        made = state.outputs | {position}
        after = StoredState(made, state.kept, state.gradient)
        kept = ChainOperation("F_ck", position)
        yield _Move(one.pass_seconds, beside + one.pass_peak, (kept,), after)
        if plain and position > 1 and one.in_place:
            peak = beside + one.pass_peak - self.ways.at(position - 1).output
            after = StoredState(made - {position - 1}, state.kept, state.gradient)
            yield _Move(one.pass_seconds, peak, (ChainOperation("F_none", position),), after)

    def _keeps(
        self, state: StoredState, position: int, one: PositionOptions, beside: int, there: int
    ) -> Iterator[_Move]:
        for number, way in enumerate(one.ways):
            kind: OperationKind = "F_all" if way.option == NO_OPTION else "F"
            forward, peak = ChainOperation(kind, position, way.option), beside + way.forward_peak
            if not way.at_once:
                kept = state.kept | {(position, number)}
                after = StoredState(state.outputs, kept, state.gradient)
                yield _Move(way.forward_seconds, peak, (forward,), after)
            if position == state.gradient:
                ended = self._backward(state, position, way, there + way.save)
                seconds = way.forward_seconds - way.output_seconds + ended.seconds
                both = (forward, *ended.operations)
                yield _Move(seconds, max(peak, ended.peak), both, ended.after)

    def _backward(
        self, state: StoredState, position: int, way: PositionOption, there: int
    ) -> _Move:
        kept = frozenset(pair for pair in state.kept if pair[0] != position)
        after = StoredState(state.outputs - {position - 1}, kept, position - 1)
        peak = there - way.save + way.backward_peak
        return _Move(way.backward_seconds, peak, (ChainOperation("B", position),), after)

    def _loss(self, state: StoredState, way: PositionOption, beside: int, there: int) -> _Move:
        ended = self._backward(state, self.last, way, there + way.save)
        seconds = way.forward_seconds + ended.seconds
        peak = max(beside + way.forward_peak, ended.peak)
        return _Move(seconds, peak, (ChainOperation("loss", self.last),), ended.after)


class _SearchProgress:
    """How fast a search comes from the `first` bound on all sequences to what it is taken to end
    at, in shares of that way, with the logarithm of the states that it has looked at."""

    def __init__(self, first: float, persistent: float | None) -> None:
        self.first = first
        self.way = 0.0 if persistent is None else EXPECTED_END_SHARE * (persistent - first)
        self.noted: list[float] = []

    def states(self, looked: int, least: float) -> float:
        """An estimate of the states that a search takes which has looked at some, of which the last
        had a bound of `least` seconds; 0 where there is none."""
        if self.way <= 0 or looked != FIRST_PROGRESS_CHECK * PROGRESS_CHECK_FACTOR ** len(
            self.noted
        ):
            return 0.0
        share = (least - self.first) / self.way
        before = self.noted[-1:] or [share]
        self.noted.append(share)
        pace = max((share - before[0]) / math.log(PROGRESS_CHECK_FACTOR), share / math.log(looked))
        left = (1.0 - share) / pace if 0 < share < 1 and len(self.noted) > 1 else 0.0
        return looked * math.exp(min(left, 100.0)) if left else 0.0


def _path_to(
    reached: dict[StoredState, tuple[StoredState, tuple[ChainOperation, ...]]], state: StoredState
) -> list[ChainOperation]:
    """The operations that lead to a state, in order."""
    steps = []
    while state in reached:
        state, operations = reached[state]
        steps.append(operations)
    return [operation for operations in reversed(steps) for operation in operations]


class EarlyFreeChainPlans:
    """The fastest plans of a chain at any budget, to the byte. Raises ConfigError where a search
    ends before it is through."""

    slots = 0
    kind = "possible"
    solver = "search of all states"

    def __init__(self, ways: ChainProblem) -> None:
        self.ways = ways
        self.search = SequenceSearch(ways)
        self.keep_all = ChainPlan.of_chain(self.ways, keep_all_sequence(ways))
        self._known: dict[int, ChainPlan | None] = {}

    @cached_property
    def persistent(self) -> ChainFrontier:
        """The plans whose outputs stay where they are, to say how long a search takes."""
        return ChainFrontier(self.ways)

    @cached_property
    def smallest_budget(self) -> int:
        """The least bytes in which any sequence can run, by bisection."""
        budgets = range(ChainMinMemory(self.ways).budget)
        return bisect_left(budgets, True, key=lambda budget: self.within(budget) is not None)

    def within(self, budget: int) -> ChainPlan | None:
        """The fastest plan of at most `budget` bytes; None where no sequence fits."""
        if budget >= self.keep_all.peak:
            return self.keep_all
        if budget not in self._known:
            found = self.search.fastest(budget, persistent=self._persistent_seconds(budget))
            if found.gave_up:
                raise ConfigError(
                    f"a chain of {len(self.ways)} positions is too long to search all that can be "
                    f"stored, of which up to {MAX_SEARCH_STATES:,} states are looked at: "
                    f"{found.states:,} were, and it is far from its end; take another strategy"
                )
            sequence = found.sequence
            self._known[budget] = (
                None if sequence is None else ChainPlan.of_chain(self.ways, sequence)
            )
        return self._known[budget]

    def bound(self, budget: int) -> float:
        """Seconds that no sequence within a budget beats: those of the fastest."""
        plan = self.within(budget)
        return float("inf") if plan is None else plan.seconds

    def rounded(self, budget: int) -> float:
        """The same: no size is rounded."""
        return self.bound(budget)

    def _persistent_seconds(self, budget: int) -> float:
        """The seconds of the fastest persistent sequence within a budget; of those of the smallest
        budget where none fits, which others take at least about as long as."""
        least = max(budget, self.persistent.smallest_budget)
        plan = self.persistent.within(least)
        return self.keep_all.seconds if plan is None else plan.seconds
