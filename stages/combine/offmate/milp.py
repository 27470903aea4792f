"""The positions of a chain with the options of their blocks, and what of these may leave."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from tightfit.schemas.block_options import BlockOption
from tightfit.schemas.blocks import Blocks
from tightfit.schemas.graph.planning_graph import PlanningStorage
from tightfit.schemas.link import HostLink
from tightfit.stages.combine.chain.options import PositionOption, build_model_chain_problem
from tightfit.stages.combine.hierarchy.cluster_options import select_spread_options
from tightfit.stages.combine.milp import (
    FloatArray,
    LinearTerm,
    MilpBuilder,
    MilpSolution,
    SolverLimits,
    solve_milp,
)

MAX_OPTIONS = 16
"""Options of a block that are offered."""


@dataclass(frozen=True)
class OffloadableStorages:
    """Storages of the graph that may leave between two uses, with their bytes."""

    storages: Sequence[int]
    sizes: Sequence[int]

    @property
    def bytes(self) -> int:
        """All of them."""
        return sum(self.sizes)

    def grouped(self, wanted: float) -> list[int]:
        """Whole storages that are at least so many bytes together: the largest first that are
        wanted whole, at last the smallest that does (Z 4.6)."""
        chosen: list[int] = []
        left = sorted(zip(self.sizes, self.storages, strict=True), reverse=True)
        for size, storage in list(left):
            if 0 < size <= wanted:
                chosen.append(storage)
                left.remove((size, storage))
                wanted -= size
        if wanted > 0 and left:
            chosen.append(left[-1][1])
        return chosen


@dataclass(frozen=True)
class OffmateOption:
    """A way to run a block with what of its `save` may leave: `own`, between its own forward and
    backward, and its `output`, between those of the next block."""

    way: PositionOption
    own: OffloadableStorages
    output: OffloadableStorages


@dataclass(frozen=True)
class OffmateChain:
    """The blocks with their options and the parameter gradients that each leaves, in bytes; what is
    there `throughout`, and the loss with its peak. The seconds of ways are those of first
    forwards."""

    positions: list[list[OffmateOption]]
    gradients: list[int]
    always_resident: int
    loss_seconds: float
    loss_peak: int

    def __len__(self) -> int:
        return len(self.positions)


def build_offmate_chain(
    blocks: Blocks,
    options: Mapping[str, list[BlockOption]],
    storages: Sequence[PlanningStorage],
    leaving: Collection[int],
) -> OffmateChain:
    """The chain of blocks with options that were made for a link; `storages` are those of the whole
    step, `leaving` those that may."""
    ways = build_model_chain_problem(blocks, options)
    positions = []
    for number, block in enumerate(blocks.blocks, 1):
        rows = {row.option: row for row in options[block.digest]}

        def some(found: Sequence[int]) -> OffloadableStorages:
            return OffloadableStorages(found, [storages[storage].bytes for storage in found])

        found = []
        for way in ways.at(number).ways:
            mine = [block.storages[local] for local in rows[way.option].leaves]
            mine = [storage for storage in mine if storage in leaving]
            own = some([storage for storage in mine if storage not in block.outputs])
            out = some([storage for storage in mine if storage in block.outputs])
            first = replace(way, forward_seconds=rows[way.option].forward_seconds)
            found.append(OffmateOption(first, own, out))
        offered = select_spread_options([option.way.save for option in found], MAX_OPTIONS)
        positions.append([found[place] for place in offered])
    loss = ways.at(len(ways)).ways[0]
    gradients = [one.gradient for one in ways.positions[:-1]]
    return OffmateChain(
        positions, gradients, ways.always_resident, loss.backward_seconds, loss.backward_peak
    )


MAX_STEP_SHARE = 100.0
"""The longest step, in shares of all."""
OFFMATE_LIMITS = SolverLimits(gap=1e-3, nodes=50, checks=300)

MAX_TRANSFER_SHARE = 1e6
"""What moving the budget takes at most, in shares of all."""

WeightedTerms = list[tuple[float, LinearTerm]]


@dataclass(frozen=True)
class OffmateChoice:
    """What a block does: its option, and the bytes of its own and of its output that leave."""

    option: OffmateOption
    own: float
    output: float


@dataclass(frozen=True)
class OffmateSolution:
    """What each block does within a budget in bytes; no solution of the program takes less than
    `bound` seconds. `clock` says that the clock ended the solve."""

    chosen: list[OffmateChoice]
    budget: int
    bound: float
    clock: bool


def solve_offmate(
    chain: OffmateChain, link: HostLink, budget: int, limits: SolverLimits = OFFMATE_LIMITS
) -> OffmateSolution | None:
    """The program's best solution within a budget in bytes that the work suffices for; None where
    there is none, or none was found."""
    if budget <= chain.always_resident:
        return None
    program = _OffmateMilp(chain, link, budget)
    solved = solve_milp(program.matrix.sparse(), limits, [])
    if not len(solved.values):
        return None
    return program.solution(solved)


class _OffmateMilp:
    """The program, in shares of the budget and of the seconds of all blocks run once.

    `chosen` has a variable for each option; `own` and `output` what leaves of each block. `time`
    are the steps; `sent` and `back` what has been sent or brought back by the end of each, `first`
    what a step brings back before it computes.
    """

    def __init__(self, chain: OffmateChain, link: HostLink, budget: int) -> None:
        self.chain, self.link, self.budget = chain, link, budget
        self.matrix = MilpBuilder()
        fastest = (min(each.way.seconds for each in found) for found in chain.positions)
        self.unit = sum(fastest) + chain.loss_seconds or 1.0
        self.blocks = range(len(chain))
        self.loss = len(chain)
        self.steps = range(2 * len(chain) + 1)
        self.chosen = [[self.matrix.binary() for _ in found] for found in chain.positions]
        for terms in self.chosen:
            self.matrix.at_least(1.0, [(1.0, term) for term in terms])
            self.matrix.at_least(-1.0, [(-1.0, term) for term in terms])
        self.own = [self._leaves(block, False) for block in self.blocks]
        self.output = [self._leaves(block, True) for block in self.blocks]
        self.time = [self.matrix.share(1.0, MAX_STEP_SHARE) for _ in self.steps]
        most = sum(max(each.way.save for each in found) for found in chain.positions) / budget
        self.sent = [self.matrix.share(0.0, most) for _ in self.steps]
        self.back = [self.matrix.share(0.0, most) for _ in self.steps]
        self.first = [self.matrix.share(0.0, most) for _ in self.steps]
        slowness = link.seconds(budget) - link.latency
        self.slowness = min(slowness / self.unit, MAX_TRANSFER_SHARE)
        self._compute()
        self._move()
        for step in self.steps:
            self._fits(step)
        if math.isfinite(link.room):
            gone = [(-1.0, term) for term in (*self.own, *self.output)]
            self.matrix.at_least(-link.room / budget, gone)

    def solution(self, solved: MilpSolution) -> OffmateSolution:
        """What the values of the variables say."""
        values = solved.values

        def leaves(term: LinearTerm) -> float:
            size = self._value(term, values) * self.budget
            return size if size > self.budget * 1e-6 else 0.0

        chosen = []
        for block, terms in enumerate(self.chosen):
            place = max(range(len(terms)), key=lambda each: values[terms[each].column])
            option = self.chain.positions[block][place]
            own, output = leaves(self.own[block]), leaves(self.output[block])
            chosen.append(OffmateChoice(option, own, output))
        return OffmateSolution(chosen, self.budget, solved.bound * self.unit, solved.clock)

    def _value(self, term: LinearTerm, values: FloatArray) -> float:
        return term.constant if term.column < 0 else float(values[term.column])

    def _leaves(self, block: int, output: bool) -> LinearTerm:
        """How much of a block leaves: of what its option may let leave. The output of the last
        block is used by the loss and stays."""
        found = self.chain.positions[block]
        sizes = [(each.output if output else each.own).bytes / self.budget for each in found]
        if output and block == len(self.chain) - 1:
            return LinearTerm()
        term = self.matrix.share(0.0, max(sizes))
        self.matrix.at_least(0.0, [(-1.0, term), *zip(sizes, self.chosen[block], strict=True)])
        return term

    def _of(self, block: int, figures: Iterable[float], scale: float) -> WeightedTerms:
        """A figure of the option that a block runs with, in shares."""
        return [
            (figure / scale, term) for figure, term in zip(figures, self.chosen[block], strict=True)
        ]

    def _compute(self) -> None:
        """A step takes at least what it computes."""
        for block, found in enumerate(self.chain.positions):
            forward = [each.way.forward_seconds for each in found]
            backward = [each.way.backward_seconds for each in found]
            for step, seconds in ((block, forward), (2 * self.loss - block, backward)):
                own = [(-weight, term) for weight, term in self._of(block, seconds, self.unit)]
                own.append((-self.slowness, self.first[step]))
                self.matrix.at_least(0.0, [(1.0, self.time[step]), *own])
        loss = self.chain.loss_seconds / self.unit
        self.matrix.at_least(loss, [(1.0, self.time[self.loss])])

    def _move(self) -> None:
        """A step takes at least what goes over the link meanwhile; what leaves was made before it
        is sent, and is back in time."""
        matrix = self.matrix
        everything = [(1.0, term) for term in (*self.own, *self.output)]
        for step in self.steps:
            moved = [self._more(self.sent, step), self._more(self.back, step)]
            matrix.at_least(0.0, moved[0])
            matrix.at_least(0.0, [*moved[1], (-1.0, self.first[step])])
            for each in [moved[0] + moved[1]] if self.link.shared else moved:
                late = [(-self.slowness * weight, term) for weight, term in each]
                matrix.at_least(0.0, [(1.0, self.time[step]), *late])
            if step < self.loss:
                made = [(1.0, self.own[block]) for block in range(step + 1)]
                made += [(1.0, self.output[block]) for block in range(step + 1)]
                matrix.at_least(0.0, [*made, (-1.0, self.sent[step])])
                matrix.at_least(0.0, [(-1.0, self.back[step])])
        for weight in (1.0, -1.0):
            matrix.at_least(
                0.0,
                [(weight, self.sent[self.loss]), *((-weight * w, term) for w, term in everything)],
            )
        for block in self.blocks:
            needed = [(-1.0, self.own[later]) for later in range(block, len(self.chain))]
            needed += [
                (-1.0, self.output[later]) for later in range(max(block - 1, 0), len(self.chain))
            ]
            step = 2 * self.loss - block
            there = [(1.0, self.back[step - 1]), (1.0, self.first[step])]
            matrix.at_least(0.0, [*there, *needed])

    def _more(self, moved: list[LinearTerm], step: int) -> WeightedTerms:
        """What is moved in a step."""
        before = [(-1.0, moved[step - 1])] if step else []
        return [(1.0, moved[step]), *before]

    def _fits(self, step: int) -> None:
        """What is on the device while a step runs is within the budget."""
        ahead = min(step, 2 * self.loss - step)
        kept: WeightedTerms = []
        for block in range(ahead):
            saves = [each.way.save for each in self.chain.positions[block]]
            kept += self._of(block, saves, self.budget)
        room = (self.budget - self.chain.always_resident) / self.budget
        if step == self.loss:
            room -= self.chain.loss_peak / self.budget
        else:
            found = self.chain.positions[ahead]
            late = step > self.loss
            peaks = [e.way.backward_peak if late else e.way.forward_peak for e in found]
            kept += self._of(ahead, peaks, self.budget)
            room -= sum(self.chain.gradients[ahead + 1 :]) / self.budget if late else 0.0
        spare = [(1.0, self.own[block]) for block in range(ahead)]
        spare += [(1.0, self.output[block]) for block in range(ahead - 1)]
        there = [(-weight, term) for weight, term in kept]
        if step > self.loss:
            away = [(1.0, term) for term in (*self.own, *self.output)]
            self.matrix.at_least(-room, [*there, *away, (-1.0, self.back[step])])
            return
        coming = [(-1.0, self.back[step])]
        gone = [(1.0, self.sent[step - 1])] if step else []
        self.matrix.at_least(-room, [*there, *gone, *coming])
        self.matrix.at_least(-room, [*there, *spare, *coming])
