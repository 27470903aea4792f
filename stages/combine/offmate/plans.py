"""From options of blocks that let something leave to plans with transfers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from tightfit.schemas.blocks import Blocks
from tightfit.schemas.engines import HIGHS, Engine
from tightfit.schemas.link import HostLink
from tightfit.schemas.options import Option
from tightfit.schemas.problem import Problem
from tightfit.schemas.sequence import Operation
from tightfit.stages.combine.bounds import least_peak
from tightfit.stages.combine.offmate.positions import OffmateChain, offmate_chain
from tightfit.stages.combine.offmate.program import (
    LIMITS,
    ChosenOption,
    OffmateSolution,
    solve_offmate,
)
from tightfit.stages.combine.schedule.executions import executions_of
from tightfit.stages.combine.transfers.placing import Placed, Placer
from tightfit.stages.replay.line import FASTEST, executions

BUDGETS, CLOSER = 16, 4
"""Budgets that are planned for, and how often one between the last that was met and the first that
was not is tried after them."""


@dataclass(frozen=True)
class OffmatePlan:
    """A plan with transfers, its operations on blocks, and how it was found."""

    placed: Placed
    sequence: list[Operation]
    origin: str


class OffmatePlanner:
    """Plans of a step with a link, by the program of an engine; `leaving` are the storages that may
    leave, with the values by which they do."""

    def __init__(
        self,
        problem: Problem,
        blocks: Blocks,
        options: Mapping[str, list[Option]],
        link: HostLink,
        leaving: Mapping[int, int],
        engine: Engine = HIGHS,
    ) -> None:
        self.problem, self.blocks, self.options, self.link = problem, blocks, options, link
        self.placer = Placer(problem, link, leaving)
        self.limits = replace(LIMITS, engine=engine)
        self.positions = {node.op: index for index, node in enumerate(problem.nodes)}

    def plans(self) -> Iterator[OffmatePlan]:
        """Plans for falling budgets, down to the least that the program has a solution for, or
        nearly so."""
        captured = range(len(self.problem.nodes))
        played = executions(self.problem, captured, in_place=True, ceiling=FASTEST)
        highest, least = max(run.peak for run in played), least_peak(self.problem)
        met, missed, closer = highest, 0, 0
        while met > least and closer <= CLOSER:
            step = (met - missed) // 2 if missed else -((least - highest) // BUDGETS)
            budget = max(met - step, least)
            solution = self._solution(budget)
            if solution is None:
                missed = budget
            else:
                met = budget
                plan = self._plan(solution)
                yield from () if plan is None else (plan,)
            closer += missed > 0

    def within(self, budget: int) -> OffmatePlan | None:
        """The plan for a budget in bytes, None where the program has no solution or its transfers
        cannot be placed."""
        solution = self._solution(budget)
        return None if solution is None else self._plan(solution)

    def _solution(self, budget: int) -> OffmateSolution | None:
        return solve_offmate(self.chain, self.link, budget, self.limits)

    @cached_property
    def chain(self) -> OffmateChain:
        """The blocks with the options that they are offered."""
        return offmate_chain(self.blocks, self.options, self.problem.storages, self.placer.leaving)

    def _plan(self, solution: OffmateSolution) -> OffmatePlan | None:
        """The plan of a solution, None where transfers cannot be placed within its budget."""
        options = [each.option.way.option for each in solution.chosen]
        numbers = range(1, len(options) + 1)
        sequence = [Operation("F", n, options[n - 1]) for n in numbers]
        sequence.append(Operation("loss", len(options) + 1))
        sequence += [Operation("B", n) for n in reversed(numbers)]
        ops = executions_of(self.problem, self.blocks, self.options, sequence)
        nodes = [self.positions[op] for op in ops]
        back = self._back(solution.chosen, ops)
        placed = self.placer.place(nodes, back, solution.budget)
        if placed is None:
            return None
        clock = ", ended by the clock" if solution.clock else ""
        said = f"options of {len(options)} blocks with a link, {solution.budget} bytes{clock}"
        return OffmatePlan(placed, sequence, said)

    def _back(self, chosen: list[ChosenOption], ops: list[int]) -> list[tuple[int, int]]:
        """What leaves, whole storages, with the places ahead of which they come back at the latest:
        the backward of the block, or for its output that of the next one."""
        block_of = {
            op: number
            for number, block in enumerate(self.blocks.blocks)
            for op in (*block.forward, *block.backward)
        }
        begins: dict[int, int] = {}
        for place in range(ops.index(self.blocks.loss) + 1, len(ops)):
            if ops[place] in block_of:
                begins.setdefault(block_of[ops[place]], place)
        found = []
        for number, each in enumerate(chosen):
            for leaves, wanted, reader in (
                (each.option.own, each.own, number),
                (each.option.output, each.output, number + 1),
            ):
                if wanted > 0 and reader in begins:
                    found += [(storage, begins[reader]) for storage in leaves.grouped(wanted)]
        return found
