"""Rotor: each position of the chain keeps everything or nothing (S 2.3.4)."""

from __future__ import annotations

from collections.abc import Mapping

from schemas.blocks import Blocks
from schemas.options import Option
from schemas.problem import Problem
from stages.combine.chain.frontier import SLOTS, ChainFrontier, spread
from stages.combine.chain.links import Links, links_of_blocks
from stages.combine.schedule.executions import executions_of
from stages.combine.strategies.candidate import Candidate

OPTIMAL_IN = f"persistent sequences of the chain at {SLOTS} slots"
BUDGETS = 24


def candidates(
    problem: Problem, blocks: Blocks, options: Mapping[str, list[Option]]
) -> list[Candidate]:
    """Plans from keeping everything down to the least memory, with blocks that keep everything
    or nothing."""
    return candidates_of(problem, blocks, options, links_of_blocks(blocks, options, True))


def candidates_of(
    problem: Problem, blocks: Blocks, options: Mapping[str, list[Option]], links: Links
) -> list[Candidate]:
    """At most `BUDGETS` plans of the dynamic program on `links`, evenly spread over its frontier,
    from most to least memory."""
    plans = ChainFrontier(links).plans()
    found: list[Candidate] = []
    for index in spread(len(plans), BUDGETS):
        plan = plans[index]
        executions = executions_of(problem, blocks, options, plan.sequence)
        origin = f"dynamic program, {plan.peak} bytes"
        found.append(Candidate(executions, [str(action) for action in plan.sequence], origin))
    return found
