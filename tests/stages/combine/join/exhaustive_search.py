"""Sequences of joins by exhaustive search, independent of the planner's own accounting."""

from __future__ import annotations

import heapq
import json
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from tests.stages.combine.persistent import State, moves
from tightfit.schemas.sequence import NO_OPTION, ChainOperation
from tightfit.stages.combine.chain.options import ChainProblem, PositionOption, PositionOptions
from tightfit.stages.combine.chain.simulate import simulate_join
from tightfit.stages.combine.join.problem import JoinProblem
from tightfit.util.errors import ScheduleError

CASES = Path(__file__).parents[3] / "cases"
_S = TypeVar("_S", bound=Hashable)


def cases(family: str) -> list[dict[str, Any]]:
    """The instances of a family with known optima."""
    return json.loads((CASES / f"{family}.json").read_text())["cases"]


def cheapest(
    start: _S, done: Callable[[_S], bool], steps: Callable[[_S], Iterator[tuple[float, _S]]]
) -> float:
    """The least cost from a state to one that is done, infinite without one."""
    queue: list[tuple[float, int, _S]] = [(0.0, 0, start)]
    seen: set[_S] = set()
    number = 0
    while queue:
        cost, _, state = heapq.heappop(queue)
        if done(state):
            return cost
        if state in seen:
            continue
        seen.add(state)
        for more, after in steps(state):
            if after not in seen:
                number += 1
                heapq.heappush(queue, (cost + more, number, after))
    return inf


class Unit(NamedTuple):
    """A branch of S ch. 1: the activations that are stored, and the gradient that is, -1 for
    none."""

    stored: frozenset[int]
    gradient: int


UnitState = tuple[bool, tuple[Unit, ...]]
Joint = tuple[bool, tuple[State, ...]]
"""Whether the loss has run, and the branches."""


def unit_optimum(
    lengths: Sequence[int], kept: Sequence[bool], memory: int, u_f: float, u_b: float, u_t: float
) -> float:
    """The least makespan of MULTI-b within `memory` slots: S Problem 4 with the operations of its
    Table 1.1, where any activation may be discarded."""

    def count(units: tuple[Unit, ...]) -> int:
        return sum(len(unit.stored) + (unit.gradient >= 0) for unit in units)

    def steps(state: UnitState) -> Iterator[tuple[float, UnitState]]:
        turned, units = state
        for k, unit in enumerate(units):
            for cost, after in branch_steps(turned, unit, k):
                changed = (*units[:k], after, *units[k + 1 :])
                if count(changed) <= memory:
                    yield cost, (turned, changed)
        if not turned and all(n in u.stored for n, u in zip(lengths, units, strict=True)):
            ends = zip(lengths, units, strict=True)
            yield u_t, (True, tuple(Unit(u.stored - {n}, n) for n, u in ends))

    def branch_steps(turned: bool, unit: Unit, k: int) -> Iterator[tuple[float, Unit]]:
        for i in unit.stored:
            yield 0.0, Unit(unit.stored - {i}, unit.gradient)
            if i < lengths[k] and i + 1 not in unit.stored:
                yield u_f, Unit(unit.stored | {i + 1}, unit.gradient)
                yield u_f, Unit(unit.stored - {i} | {i + 1}, unit.gradient)
        if turned and unit.gradient > 0 and unit.gradient - 1 in unit.stored:
            yield u_b, Unit(unit.stored - {unit.gradient - 1}, unit.gradient - 1)
        if turned and unit.gradient == 0 and not kept[k]:
            yield 0.0, Unit(unit.stored, -1)

    def done(state: UnitState) -> bool:
        turned, units = state
        left = zip(units, kept, strict=True)
        return turned and all(unit.gradient == (0 if stays else -1) for unit, stays in left)

    if len(lengths) > memory:
        return inf
    start: UnitState = (False, tuple(Unit(frozenset({0}), -1) for _ in lengths))
    return cheapest(start, done, steps)


def persistent_optimum(join: JoinProblem, budget: int) -> float:
    """The least seconds of any sequence that is persistent in each branch, nested or not."""
    end = PositionOptions(0, 0, 0, 0.0, 0, [PositionOption(NO_OPTION, 0, 0, 0, 0.0, 0.0)])
    chains = [replace(ways, positions=[*ways.positions, end]) for ways in join.branches]

    def stored(ways: ChainProblem, state: State) -> int:
        plain = sum(ways.at(p).output for p in state.outputs if p)
        kept = sum(ways.at(p).ways[index].save for p, index in state.kept)
        grown = sum(ways.at(p).gradient for p in range(state.next_backward + 1, len(ways) + 1))
        delta = ways.at(state.next_backward).delta if state.next_backward else 0
        return ways.always_resident + plain + kept + grown + delta

    def steps(joint: Joint) -> Iterator[tuple[float, Joint]]:
        turned, states = joint
        sizes = [stored(ways, state) for ways, state in zip(chains, states, strict=True)]
        loss, way = join.loss, join.turn
        own = loss.gradient if turned else loss.delta
        for k, (ways, state) in enumerate(zip(chains, states, strict=True)):
            if state.next_backward == 0:
                continue
            beside = own + sum(sizes) - sizes[k]
            for seconds, peak, after in moves(ways, state):
                if len(ways) not in dict(after.kept) and beside + peak <= budget:
                    yield seconds, (turned, (*states[:k], after, *states[k + 1 :]))
        if turned or not all(map(_arrived, chains, states)):
            return
        if sum(sizes) + max(own + way.forward_peak, way.backward_peak) <= budget:
            yield way.seconds, (True, tuple(map(_turned, chains, states)))

    def done(joint: Joint) -> bool:
        return joint[0] and all(state.next_backward == 0 for state in joint[1])

    begin = (State(frozenset({0}), frozenset(), frozenset(), len(ways)) for ways in chains)
    first = sum(ways.first_seconds for ways in chains)
    return first + cheapest((False, tuple(begin)), done, steps)


def _arrived(ways: ChainProblem, state: State) -> bool:
    last = len(ways) - 1
    return last in state.outputs or last in dict(state.kept)


def _turned(ways: ChainProblem, state: State) -> State:
    last = len(ways) - 1
    outputs = state.outputs - ({last} - {0})
    return State(outputs, state.kept, state.pinned - {last}, last)


def nested_optimum(join: JoinProblem, budget: int) -> float:
    """The least seconds of a nested sequence: all of them, played by the simulator."""
    best = inf
    loss = ChainOperation("loss", max(map(len, join.branches)) + 1)
    for before, after in _nested(join, [1] * len(join.branches)):
        try:
            played = simulate_join(join, [*before, loss, *after])
        except ScheduleError as error:
            raise AssertionError(error) from error
        if played.peak <= budget:
            best = min(best, played.seconds)
    return best


_Steps = list[ChainOperation]


def _nested(join: JoinProblem, reached: list[int]) -> Iterator[tuple[_Steps, _Steps]]:
    left = [k for k, ways in enumerate(join.branches) if reached[k] <= len(ways)]
    if not left:
        yield [], []
    for k in left[:1] if join.ordered else left:
        ways, s = join.branches[k], reached[k]
        for before, after, following in _items(ways, k + 1, s):
            further = [*reached[:k], following, *reached[k + 1 :]]
            for inner, outer in _nested(join, further):
                yield [*before, *inner], [*outer, *after]


def _items(ways: ChainProblem, branch: int, s: int) -> Iterator[tuple[_Steps, _Steps, int]]:
    for way in ways.at(s).ways:
        yield [_forward(s, way, branch)], [ChainOperation("B", s, branch=branch)], s + 1
    for r in range(s, len(ways) + 1):
        for tail in _segments(ways, branch, s, r):
            yield _passed(s, r, branch), tail, r + 1


def _segments(ways: ChainProblem, branch: int, s: int, t: int) -> Iterator[_Steps]:
    """All persistent sequences of positions s..t."""
    for way in ways.at(s).ways:
        for inner in _segments(ways, branch, s + 1, t) if s < t else [[]]:
            yield [_forward(s, way, branch), *inner, ChainOperation("B", s, branch=branch)]
    for r in range(s, t):
        for inner in _segments(ways, branch, r + 1, t):
            for outer in _segments(ways, branch, s, r):
                yield [*_passed(s, r, branch), *inner, *outer]


def _forward(position: int, way: PositionOption, branch: int) -> ChainOperation:
    return ChainOperation("F_all" if way.option == NO_OPTION else "F", position, way.option, branch)


def _passed(s: int, r: int, branch: int) -> _Steps:
    rest = [ChainOperation("F_none", p, branch=branch) for p in range(s + 1, r + 1)]
    return [ChainOperation("F_ck", s, branch=branch), *rest]
