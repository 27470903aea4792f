"""Rotor: each position of the chain keeps everything or nothing (S 2.3.4)."""

from __future__ import annotations

from dataclasses import replace

from tightfit.schemas.strategies import STRATEGIES
from tightfit.stages.combine.chain.frontier import ChainFrontier, spread
from tightfit.stages.combine.chain.ways import Ways, ways_of_blocks
from tightfit.stages.combine.schedule.executions import candidate_of
from tightfit.stages.combine.strategies.strategy import Candidate, TrainingStep

BUDGETS = 24


class Rotor:
    """The dynamic program over blocks that keep everything or nothing."""

    about = STRATEGIES["rotor"]

    def supports(self, step: TrainingStep) -> str:
        """Every step: one that is no sequence is a chain of one block."""
        return ""

    def candidates(self, step: TrainingStep) -> list[Candidate]:
        """Plans from keeping everything down to the least memory."""
        return candidates_of(step, ways_of_blocks(step.blocks, step.options, True))

    def plans_of_chain(self, ways: Ways, slots: int) -> ChainFrontier:
        """The plans of a chain from a file."""
        return ChainFrontier(ways, slots)


STRATEGY = Rotor()


def candidates_of(step: TrainingStep, ways: Ways) -> list[Candidate]:
    """At most `BUDGETS` plans of the dynamic program on `ways`, evenly spread over its frontier,
    from most to least memory. They are optimal where none of the frontier is left out."""
    program = ChainFrontier(ways)
    plans = program.plans()
    optimal = program.complete and len(plans) <= BUDGETS
    found: list[Candidate] = []
    for index in spread(len(plans), BUDGETS):
        plan = plans[index]
        origin = f"dynamic program, {plan.peak} bytes"
        found.append(replace(candidate_of(step, plan.sequence, origin), optimal=optimal))
    return found
