"""Persistent sequences by exhaustive search, independent of the planner's own accounting."""

from __future__ import annotations

import heapq
import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tightfit.schemas.chain import Chain, ChainPosition
from tightfit.stages.combine.chain.options import ChainProblem, PositionOptions

CASES = Path(__file__).parents[2] / "cases" / "remat.json"


class State(NamedTuple):
    """Plain outputs that are stored, kept ways (position, index), outputs that must stay until
    the backward that reads them, and the position whose backward is next."""

    outputs: frozenset[int]
    kept: frozenset[tuple[int, int]]
    pinned: frozenset[int]
    next_backward: int


def optimum(ways: ChainProblem, budget: int) -> float:
    """The least seconds of a persistent sequence within `budget` bytes, infinite without one."""
    start = State(frozenset({0}), frozenset(), frozenset(), len(ways))
    queue: list[tuple[float, int, State]] = [(0.0, 0, start)]
    done: set[State] = set()
    number = 0
    while queue:
        seconds, _, state = heapq.heappop(queue)
        if state.next_backward == 0:
            return seconds
        if state in done:
            continue
        done.add(state)
        for more, peak, after in moves(ways, state):
            if peak <= budget and after not in done:
                number += 1
                heapq.heappush(queue, (seconds + more, number, after))
    return float("inf")


def moves(ways: ChainProblem, state: State) -> Iterator[tuple[float, int, State]]:
    """Every action that can follow: its seconds, its peak, and what it leaves."""
    there = _stored(ways, state)
    kept = dict(state.kept)
    for position in range(1, state.next_backward + 1):
        one = ways.at(position)
        plain = position - 1 in state.outputs
        if not (plain or position - 1 in kept):
            continue
        if position in kept:
            if position == state.next_backward:
                yield _backward(ways, state, position)
            continue
        if position in state.outputs:
            continue
        beside = there + ways.at(state.next_backward).delta
        pinned = state.pinned | {position - 1}
        if position < len(ways):
            peak = beside + one.pass_peak
            made = state.outputs | {position}
            yield one.pass_seconds, peak, state._replace(outputs=made, pinned=pinned)
            if plain and position - 1 not in state.pinned and position > 1:
                gone = made - {position - 1}
                yield one.pass_seconds, peak, state._replace(outputs=gone)
        yield from _keeping(ways, state, position, one, beside)


def _keeping(
    ways: ChainProblem, state: State, position: int, one: PositionOptions, beside: int
) -> Iterator[tuple[float, int, State]]:
    pinned = state.pinned | {position - 1}
    for index, way in enumerate(one.ways):
        peak = beside + way.forward_peak
        after = state._replace(kept=state.kept | {(position, index)}, pinned=pinned)
        if not way.at_once:
            yield way.forward_seconds, peak, after
        if position == state.next_backward and position < len(ways):
            more, back, last = _backward(ways, after, position)
            seconds = way.forward_seconds - way.output_seconds + more
            yield seconds, max(peak, back), last


def _backward(ways: ChainProblem, state: State, position: int) -> tuple[float, int, State]:
    index = dict(state.kept)[position]
    way = ways.at(position).ways[index]
    peak = _stored(ways, state) - way.save + way.backward_peak
    after = State(
        state.outputs - ({position - 1} - {0}),
        state.kept - {(position, index)},
        state.pinned - {position - 1},
        position - 1,
    )
    return way.backward_seconds, peak, after


def _stored(ways: ChainProblem, state: State) -> int:
    outputs = sum(ways.at(position).output for position in state.outputs if position)
    kept = sum(ways.at(position).ways[index].save for position, index in state.kept)
    grown = sum(ways.at(p).gradient for p in range(state.next_backward + 1, len(ways) + 1))
    return ways.always_resident + outputs + kept + grown


def cases() -> list[dict]:
    """The rematerialisation instances with known optima."""
    return json.loads(CASES.read_text())["cases"]


def chain_of_case(case: dict) -> Chain:
    """An instance as a chain."""
    positions = [
        ChainPosition(
            position=p,
            u_f=case["u_f"][p],
            u_b=case["u_b"][p],
            a=case["a"][p],
            abar=case["abar"][p],
            delta=case["delta"][p],
            o_f=case["o_f"][p],
            o_b=case["o_b"][p],
            weight=0,
            grad=0,
            label="",
        )
        for p in range(1, case["L"] + 2)
    ]
    return Chain(positions, case["a"][0], case["delta"][0])
