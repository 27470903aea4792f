"""From options of blocks that let something leave to plans with transfers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from tightfit.schemas.block_options import BlockOption
from tightfit.schemas.blocks import Blocks
from tightfit.schemas.graph.planning_graph import PlanningGraph
from tightfit.schemas.link import HostLink
from tightfit.schemas.sequence import ChainOperation
from tightfit.stages.combine.activation_offload.placement import PlacedTransfers, TransferPlacer
from tightfit.stages.combine.bounds.lower_bounds import peak_lower_bound
from tightfit.stages.combine.lowering.blocks import lower_to_executions
from tightfit.stages.combine.offmate.milp import (
    OFFMATE_LIMITS,
    OffmateChain,
    OffmateChoice,
    OffmateSolution,
    build_offmate_chain,
    solve_offmate,
)
from tightfit.stages.simulate.liveness import INFINITE_IN_PLACE_THRESHOLD, simulate_executions
from tightfit.util.solver_engines import HIGHS_ENGINE, SolverEngine

BUDGET_COUNT, BISECTION_STEPS = 16, 4
"""Budgets that are planned for, and how often one between the last that was met and the first that
was not is tried after them."""


@dataclass(frozen=True)
class OffmatePlan:
    """A plan with transfers, its operations on blocks, and how it was found."""

    placed: PlacedTransfers
    sequence: list[ChainOperation]
    origin: str


class OffmatePlanner:
    """Plans of a step with a link, by the program of an engine; `leaving` are the storages that may
    leave, with the values by which they do."""

    def __init__(
        self,
        problem: PlanningGraph,
        blocks: Blocks,
        options: Mapping[str, list[BlockOption]],
        link: HostLink,
        leaving: Mapping[int, int],
        engine: SolverEngine = HIGHS_ENGINE,
    ) -> None:
        self.problem, self.blocks, self.options, self.link = problem, blocks, options, link
        self.placer = TransferPlacer(problem, link, leaving)
        self.limits = replace(OFFMATE_LIMITS, engine=engine)
        self.positions = {node.op: index for index, node in enumerate(problem.nodes)}

    def plans(self) -> Iterator[OffmatePlan]:
        """Plans for falling budgets, down to the least that the program has a solution for, or
        nearly so."""
        captured = range(len(self.problem.nodes))
        played = simulate_executions(
            self.problem, captured, in_place=True, ceiling=INFINITE_IN_PLACE_THRESHOLD
        )
        highest, least = max(run.peak for run in played), peak_lower_bound(self.problem)
        met, missed, closer = highest, 0, 0
        while met > least and closer <= BISECTION_STEPS:
            step = (met - missed) // 2 if missed else -((least - highest) // BUDGET_COUNT)
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
        return build_offmate_chain(
            self.blocks, self.options, self.problem.storages, self.placer.leaving
        )

    def _plan(self, solution: OffmateSolution) -> OffmatePlan | None:
        """The plan of a solution, None where transfers cannot be placed within its budget."""
        options = [each.option.way.option for each in solution.chosen]
        numbers = range(1, len(options) + 1)
        sequence = [ChainOperation("F", n, options[n - 1]) for n in numbers]
        sequence.append(ChainOperation("loss", len(options) + 1))
        sequence += [ChainOperation("B", n) for n in reversed(numbers)]
        ops = lower_to_executions(self.problem, self.blocks, self.options, sequence)
        nodes = [self.positions[op] for op in ops]
        back = self._back(solution.chosen, ops)
        placed = self.placer.place(nodes, back, solution.budget)
        if placed is None:
            return None
        clock = ", ended by the clock" if solution.clock else ""
        said = f"options of {len(options)} blocks with a link, {solution.budget} bytes{clock}"
        return OffmatePlan(placed, sequence, said)

    def _back(self, chosen: list[OffmateChoice], ops: list[int]) -> list[tuple[int, int]]:
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
