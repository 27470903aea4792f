"""Moments that are added by relaxed programs, which take little work each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tightfit.stages.combine.moment.draft import sequence_of
from tightfit.stages.combine.moment.limits import Limits
from tightfit.stages.combine.moment.matrix import SparseProgram
from tightfit.stages.combine.moment.program import Program
from tightfit.stages.combine.moment.solver import integral, relaxed

AT_ONCE = 2
"""Moments that are added to one program."""
WIDEST, WORK = 8, 100_000_000
"""The most moments of one program, and the iterations times columns of all relaxed ones; one of
them is taken to have as many iterations as columns before it is solved."""
GAIN = 1e-3
"""What moments have to add to the bound for others to follow, in shares of the step."""
WHOLE, WHOLE_WORK = 4, 50_000_000
"""The work of a program with whole numbers, as a multiple of what it takes relaxed, and the most
that it is taken to take for it to be solved."""

Asking = Callable[[Sequence[int], Sequence[int]], list[int]]
Making = Callable[[Sequence[int]], tuple[Program, SparseProgram]]


@dataclass
class Widened:
    """`bound` is at most what any plan takes, in shares of the step beyond its own; `sequences` are
    starts for the search, and `clock` says that the clock ended a solve."""

    bound: float
    sequences: list[list[int]]
    clock: bool


def widened(
    making: Making,
    asking: Asking,
    moments: Sequence[int],
    sequence: list[int],
    bound: float,
    limits: Limits,
) -> Widened:
    """A known bound, raised by more moments than some, `making` programs of them, where sequences
    of their solutions are `asking` for the most; at first the given one does. The last relaxed
    program that raises the bound is solved with whole numbers, too, where it is small enough."""
    found = Widened(bound, [], False)
    kept: tuple[Program, SparseProgram] | None = None
    left, taken = WORK, 0
    while room := max(min(AT_ONCE, WIDEST - len(moments)), 0):
        worst = asking(sequence, moments)[:room]
        if not worst:
            break
        moments = sorted({*moments, *worst})
        program, arrays = making(moments)
        columns = len(arrays.cost)
        if columns**2 > left:
            break
        solved = relaxed(arrays, limits)
        found.clock = found.clock or solved.clock
        left -= solved.iterations * columns
        if solved.bound < found.bound + GAIN or not len(solved.values):
            break
        found.bound, taken = solved.bound, solved.iterations * columns
        kept = program, arrays
        sequence = sequence_of(program, solved.values)
    if kept is not None and WHOLE * taken <= WHOLE_WORK:
        program, arrays = kept
        whole = integral(arrays, limits)
        found.bound, found.clock = max(found.bound, whole.bound), found.clock or whole.clock
        if len(whole.values):
            found.sequences.append(sequence_of(program, whole.values))
    return found
