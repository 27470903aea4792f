"""Moments that are added by relaxed programs, which take little work each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tightfit.stages.combine.bounds.cut_program import CutProgram, sequence_from_solution
from tightfit.stages.combine.milp import MilpProgram, SolverLimits, solve_milp, solve_relaxation

CUTS_AT_ONCE = 2
"""Moments that are added to one program."""
MAX_REFINED_CUTS, RELAXATION_WORK = 8, 100_000_000
"""The most moments of one program, and the iterations times columns of all relaxed ones; one of
them is taken to have as many iterations as columns before it is solved."""
MIN_RELAXATION_GAIN = 1e-3
"""What moments have to add to the bound for others to follow, in shares of the step."""
INTEGER_WORK_FACTOR, MAX_INTEGER_WORK = 4, 50_000_000
"""The work of a program with whole numbers, as a multiple of what it takes relaxed, and the most
that it is taken to take for it to be solved."""

WorstCutsFinder = Callable[[Sequence[int], Sequence[int]], list[int]]
CutProgramBuilder = Callable[[Sequence[int]], tuple[CutProgram, MilpProgram]]


@dataclass
class RefinedCutBound:
    """`bound` is at most what any plan takes, in shares of the step beyond its own; `sequences` are
    starts for the search, and `clock` says that the clock ended a solve."""

    bound: float
    sequences: list[list[int]]
    clock: bool


def refine_cuts(
    making: CutProgramBuilder,
    asking: WorstCutsFinder,
    moments: Sequence[int],
    sequence: list[int],
    bound: float,
    limits: SolverLimits,
) -> RefinedCutBound:
    """A known bound, raised by more moments than some, `making` programs of them, where sequences
    of their solutions are `asking` for the most; at first the given one does. The last relaxed
    program that raises the bound is solved with whole numbers, too, where it is small enough."""
    found = RefinedCutBound(bound, [], False)
    kept: tuple[CutProgram, MilpProgram] | None = None
    left, taken = RELAXATION_WORK, 0
    while room := max(min(CUTS_AT_ONCE, MAX_REFINED_CUTS - len(moments)), 0):
        worst = asking(sequence, moments)[:room]
        if not worst:
            break
        moments = sorted({*moments, *worst})
        program, arrays = making(moments)
        columns = len(arrays.cost)
        if columns**2 > left:
            break
        solved = solve_relaxation(arrays, limits)
        found.clock = found.clock or solved.clock
        left -= solved.iterations * columns
        if solved.bound < found.bound + MIN_RELAXATION_GAIN or not len(solved.values):
            break
        found.bound, taken = solved.bound, solved.iterations * columns
        kept = program, arrays
        sequence = sequence_from_solution(program, solved.values)
    if kept is not None and INTEGER_WORK_FACTOR * taken <= MAX_INTEGER_WORK:
        program, arrays = kept
        whole = solve_milp(arrays, limits)
        found.bound, found.clock = max(found.bound, whole.bound), found.clock or whole.clock
        if len(whole.values):
            found.sequences.append(sequence_from_solution(program, whole.values))
    return found
