"""Rotor: each position of the chain keeps everything or nothing (S 2.3.4)."""

from __future__ import annotations

from dataclasses import replace

from tightfit.stages.combine.chain.frontier import (
    ChainFrontier,
    ProgramFrontier,
    spread_indices,
)
from tightfit.stages.combine.chain.options import ChainProblem, build_model_chain_problem
from tightfit.stages.combine.lowering.blocks import build_candidate
from tightfit.stages.combine.strategies.strategy import Candidate, PlanningProblem
from tightfit.util.strategies import STRATEGIES

BUDGETS = 24


class RotorStrategy:
    """The dynamic program over blocks that keep everything or nothing."""

    about = STRATEGIES["rotor"]

    def supports(self, step: PlanningProblem) -> str:
        """Every step: one that is no sequence is a chain of one block."""
        return ""

    def candidates(self, step: PlanningProblem) -> list[Candidate]:
        """Plans from keeping everything down to the least memory."""
        return chain_candidates(step, build_model_chain_problem(step.blocks, step.options, True))

    def plans_of_chain(self, ways: ChainProblem, slots: int) -> ChainFrontier:
        """The plans of a chain from a file."""
        return ChainFrontier(ways, slots)


STRATEGY = RotorStrategy()


def chain_candidates(step: PlanningProblem, ways: ChainProblem) -> list[Candidate]:
    """The candidates of the dynamic program on `ways`."""
    return frontier_candidates(step, ChainFrontier(ways, step.slots))


def frontier_candidates(step: PlanningProblem, program: ProgramFrontier) -> list[Candidate]:
    """At most `BUDGETS` plans of a dynamic program, evenly spread over its frontier, from most to
    least memory. They are optimal where none of the frontier is left out."""
    plans = program.plans()
    optimal = program.complete and len(plans) <= BUDGETS
    found: list[Candidate] = []
    for index in spread_indices(len(plans), BUDGETS):
        plan = plans[index]
        origin = f"dynamic program, {plan.peak} bytes"
        found.append(replace(build_candidate(step, plan.sequence, origin), optimal=optimal))
    return found
