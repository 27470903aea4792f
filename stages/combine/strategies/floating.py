"""Floating: the fastest sequence of a short chain, whose last stored output may move on."""

from __future__ import annotations

from tightfit.schemas.strategies import STRATEGIES
from tightfit.stages.combine.chain.floated import LONGEST, FloatedChain
from tightfit.stages.combine.chain.frontier import spread
from tightfit.stages.combine.chain.ways import Ways, ways_of_blocks
from tightfit.stages.combine.schedule.executions import candidate_of
from tightfit.stages.combine.strategies.strategy import Candidate, TrainingStep

BUDGETS = 24


class Floated:
    """Rotor's program with floating persistence, of blocks that keep everything or nothing."""

    about = STRATEGIES["floating"]

    def supports(self, step: TrainingStep) -> str:
        """A step that is a chain of some blocks."""
        count = len(step.blocks.blocks)
        if count < LONGEST:
            return ""
        return f"it has {count} blocks, and a chain whose outputs move takes {LONGEST - 1}"

    def candidates(self, step: TrainingStep) -> list[Candidate]:
        """The fastest plans at budgets spread over those at which the time falls."""
        chain = FloatedChain(ways_of_blocks(step.blocks, step.options, True))
        budgets = chain.program.whole.bytes.tolist()
        found = []
        for index in spread(len(budgets), BUDGETS):
            sequence = chain.program.sequence(budgets[index])
            found.append(candidate_of(step, sequence, f"floating within {budgets[index]} bytes"))
        return found

    def plans_of_chain(self, ways: Ways, slots: int) -> FloatedChain:
        """The plans of a chain from a file; nothing is rounded to slots."""
        return FloatedChain(ways)


STRATEGY = Floated()
