"""Search by small random moves: what is faster or nearer to the budget stays, what is neither stays
now and then, less and less often."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tightfit.stages.combine.polish.arrays import Arrays, Positions
from tightfit.stages.combine.polish.equal import draw_again_in_all, draw_removal_in_all
from tightfit.stages.combine.polish.moves import draw, draw_again, draw_removal, draw_shift, undo
from tightfit.stages.combine.polish.state import EXCESS, NOTED, State, copy_sequence, state_of
from tightfit.stages.combine.polish.uncounted import inlined, uncounted

FEASIBLE = 0.3
"""How much of the search should be within the budget: what a byte above it costs follows that."""
ADAPTED = 64
"""After how many moves it does."""


class Pace(NamedTuple):
    """How a search spends its moves. It goes on from the best sequence so far for `epochs`. A step
    may lose `warmth` at first, as a part of the mean time of an op, and of that `cooling` is left
    from epoch to epoch. An epoch starts with the part `relief` of what a byte above the budget cost
    at the end of the one before, and that changes by `factor` each time it is adapted, or by more
    where it could not come back to what it was within a third of the epoch. The part `equal` of the
    moves is made in all equal places at once."""

    epochs: int
    warmth: float
    cooling: float
    relief: float
    factor: float
    equal: float


QUICK = Pace(epochs=8, warmth=0.08, cooling=0.7, relief=1.0, factor=1.1, equal=0.02)
"""For many searches of few moves each."""
PATIENT = Pace(epochs=4, warmth=0.5, cooling=0.4, relief=0.03, factor=1.015, equal=0.0)
"""For more moves: each epoch lets go of the budget and comes back to it slowly, so that what saves
the most time for its bytes is kept and what saves the least is given up, in all places at once."""

LOOSE = Pace(epochs=4, warmth=2.0, cooling=0.4, relief=0.01, factor=1.005, equal=0.0)
CLOSING = Pace(epochs=4, warmth=1.0, cooling=0.4, relief=0.1, factor=1.005, equal=0.0)
"""For sequences with transfers: one that lets go of more, and one that goes on from what that
found."""


def anneal(
    a: Arrays, sequence: Positions, budget: int, moves: int, seed: int, pace: Pace = QUICK
) -> Positions:
    """The fastest sequence within the budget met in a number of moves, where each run takes the
    faster form that it may; where none was met, the one that exceeded the budget least."""
    best, price = sequence, 0.0
    count = moves // pace.epochs
    factor = coming_back(pace, count)
    for epoch in range(pace.epochs):
        warmth = pace.warmth * pace.cooling**epoch
        state = state_of(a, best, budget, seed * pace.epochs + epoch + 1)
        found = np.empty(state.at.size, np.int32)
        length, price = cool(
            state, a, count, warmth, price * pace.relief, factor, pace.equal, found
        )
        best = found[:length]
    return best


def coming_back(pace: Pace, moves: int) -> float:
    """By what the cost of a byte above the budget changes in an epoch of so many moves."""
    return max(pace.factor, pace.relief ** (-3 * ADAPTED / max(moves, ADAPTED)))


@inlined
def first_price(a: Arrays, mean: float, price: float) -> float:
    """What a byte above the budget costs at first, where ops take a `mean` time: the price, where
    that is not 0, else little."""
    if price == 0.0:
        price = mean
        for size in a.size:
            price = min(price, mean / (size + 1))
    return price


@inlined
def next_price(price: float, factor: float, inside: int) -> float:
    """What it costs after so many of the last sequences were within the budget."""
    return price / factor if inside > FEASIBLE * ADAPTED else price * factor


@inlined
def is_better(
    excess: int, seconds: float, best_excess: int, best_seconds: float, mean: float
) -> bool:
    """Whether a sequence exceeds the budget by less than the best one, or is within it and
    faster."""
    return excess < best_excess or (excess == 0 and seconds < best_seconds - 1e-9 * mean)


@uncounted
def cool(
    s: State,
    a: Arrays,
    moves: int,
    warmth: float,
    price: float,
    factor: float,
    equal: float,
    best: Positions,
) -> tuple[int, float]:
    """One epoch: fills `best` with the best sequence and returns its length and what a byte above
    the budget costs in the end; 0 lets it begin with little."""
    seconds, excess = s.seconds[0], s.figures[EXCESS]
    mean = seconds / s.node.size
    price = first_price(a, mean, price)
    length = copy_sequence(s, best)
    best_seconds = seconds if excess == 0 else np.inf
    best_excess = excess
    inside = 0
    for move in range(moves):
        kind = draw(s)
        if kind < equal:
            if draw(s) < 0.5:
                draw_again_in_all(s, a)
            else:
                draw_removal_in_all(s, a)
        elif kind < 0.4:
            draw_again(s, a)
        elif kind < 0.8:
            draw_removal(s, a)
        else:
            draw_shift(s, a)
        if s.figures[NOTED]:
            more = s.seconds[0] - seconds + price * (s.figures[EXCESS] - excess)
            if more <= 0 or more < -warmth * mean * np.log(draw(s)):
                s.figures[NOTED] = 0
                seconds, excess = s.seconds[0], s.figures[EXCESS]
                if is_better(excess, seconds, best_excess, best_seconds, mean):
                    length = copy_sequence(s, best)
                    best_excess = excess
                    best_seconds = seconds if excess == 0 else np.inf
            else:
                undo(s, a)
                s.seconds[0] = seconds
        inside += excess == 0
        if move % ADAPTED == ADAPTED - 1:
            price = next_price(price, factor, inside)
            inside = 0
    return length, price
