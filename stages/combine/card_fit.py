"""How a training step fits on a card that is only described, in each way that people run it.

Bytes of the card are those of parameters, states of the optimizer and what the step takes, as
PyTorch's allocator reserves them (`stages.simulate.cuda_memory`); the optimizer is a fused one,
which has no temporaries, and gradients stay until it has run.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby

from tightfit.schemas.block_options import BlockOption
from tightfit.schemas.blocks import Blocks
from tightfit.schemas.card_fit import FrontierPoint, WayFit, WayName
from tightfit.schemas.costs import Costs
from tightfit.schemas.graph.planning_graph import PlanningGraph
from tightfit.schemas.graph.training_graph import Graph
from tightfit.schemas.machine import MachineDevice
from tightfit.schemas.optimizer_plan import ParameterUpdateCost
from tightfit.schemas.schedule import ScheduleStep
from tightfit.schemas.sequence import ChainOperation
from tightfit.stages.combine.bounds.lower_bounds import peak_lower_bound, total_view_seconds
from tightfit.stages.combine.chain.frontier import ChainFrontier, spread_indices
from tightfit.stages.combine.chain.options import build_model_chain_problem
from tightfit.stages.combine.lowering.blocks import captured_options, lower_to_executions
from tightfit.stages.combine.lowering.schedule import ScheduleLowering
from tightfit.stages.combine.memory_budget import baseline_bytes
from tightfit.stages.combine.optimizer_offload.optimizer_in_backward import update_costs_from_spec
from tightfit.stages.simulate.cuda_memory import simulate_cuda_memory
from tightfit.stages.simulate.liveness import Execution, simulate_executions
from tightfit.stages.simulate.planning_graph import build_planning_graph

MEMORY_SLOTS = 200
"""Parts of the memory that the dynamic program rounds sizes to."""
PLANS_TRIED = 24
"""Plans of the dynamic program that are looked at, evenly spread."""
LEAST_PLANS_TRIED = 2
"""Those of the fewest bytes that are looked at for the least."""
MAX_RESERVED_TRIES = 4
"""How often a plan with fewer requested bytes is tried where one reserves too many."""


@dataclass(frozen=True)
class StepPlan:
    """Ops in the order that they run, with the bytes of the card that they request in all and the
    seconds that they take, updates included."""

    executions: Sequence[int]
    in_place: bool
    requested: int
    seconds: float


@dataclass(frozen=True)
class CardStep:
    """A step with an optimizer on a device, with its blocks and the options of each."""

    graph: Graph
    costs: Costs
    blocks: Blocks
    options: Mapping[str, list[BlockOption]]
    device: MachineDevice
    optimizer: str
    layer_path: str = ""

    @cached_property
    def problem(self) -> PlanningGraph:
        """The step as planners see it."""
        return build_planning_graph(self.graph, self.costs)

    @cached_property
    def updates(self) -> dict[int, ParameterUpdateCost]:
        """What the update of each parameter takes on the device."""
        return update_costs_from_spec(self.graph, self.device, None, self.optimizer)

    @cached_property
    def states(self) -> int:
        """The bytes of the optimizer's states."""
        return sum(cost.states for cost in self.updates.values())

    @cached_property
    def resident(self) -> int:
        """The bytes that are on the card all the time, in plans without offload."""
        return baseline_bytes(self.graph).bytes_before_step + self.states

    @cached_property
    def least_bytes(self) -> int:
        """Bytes that every plan takes that has parameters and states on the card."""
        return self.resident + peak_lower_bound(self.problem)

    @cached_property
    def eager(self) -> StepPlan:
        """The step as it is."""
        return self._plan([node.op for node in self.problem.nodes], in_place=False)

    @cached_property
    def layers(self) -> int:
        """The layers that can be checkpointed."""
        return sum(bool(name) for name, _ in self._groups)

    def checkpointed(self, layers: int | None = None) -> StepPlan:
        """The step with the first `layers` checkpointed, all of them unless given, in the way of
        `torch.utils.checkpoint`: a layer keeps its input and runs again ahead of its backward."""
        left = self.layers if layers is None else layers
        forward: list[ChainOperation] = []
        backward: list[ChainOperation] = []
        for name, positions in self._groups:
            again, left = bool(name) and left > 0, left - bool(name)
            kinds = (
                ["F_ck", *["F_none"] * len(positions[1:])] if again else ["F_all"] * len(positions)
            )
            forward += map(ChainOperation, kinds, positions)  # type: ignore[arg-type]
            repeated = [ChainOperation("F_all", each) for each in positions] if again else []
            ends = [ChainOperation("B", each) for each in reversed(positions)]
            backward = [*repeated, *ends, *backward]
        loss = ChainOperation("loss", len(self.blocks.blocks) + 1)
        options = captured_options(self.blocks, self.options)
        return self._lowered([*forward, loss, *backward], options, in_place=False)

    @cached_property
    def _groups(self) -> list[tuple[str, list[int]]]:
        """The positions of the chain by the layer that they belong to, "" for those of none."""
        names = [self._layer(position) for position in range(1, len(self.blocks.blocks) + 1)]
        pairs = groupby(enumerate(names, start=1), key=lambda pair: pair[1])
        return [(name, [position for position, _ in found]) for name, found in pairs]

    def _layer(self, position: int) -> str:
        """The layer that most ops of a block are of; where no layers are known, each block is."""
        block = self.blocks.blocks[position - 1]
        if not self.layer_path:
            return str(position)
        found = [
            match[0] if (match := re.match(rf"{re.escape(self.layer_path)}\.\d+", module)) else ""
            for module in (self.graph.ops[op].module for op in block.forward)
        ]
        return max(dict.fromkeys(found), key=found.count, default="")

    @cached_property
    def _sequences(self) -> list[list[ChainOperation]]:
        """The plans of the dynamic program over all options of the blocks, from most to least
        bytes."""
        ways = build_model_chain_problem(self.blocks, self.options)
        return [plan.sequence for plan in ChainFrontier(ways, MEMORY_SLOTS).plans()]

    @cached_property
    def plans(self) -> list[StepPlan]:
        """Plans from most to least bytes, each faster than all with fewer."""
        chosen = spread_indices(len(self._sequences), PLANS_TRIED)
        made = [self._lowered(self._sequences[index], self.options, True) for index in chosen]
        made += self.smallest_plans
        found: list[StepPlan] = []
        for plan in sorted(made, key=lambda plan: (plan.requested, plan.seconds)):
            if not found or plan.seconds < found[-1].seconds:
                found.append(plan)
        return found[::-1]

    @cached_property
    def least_plan(self) -> StepPlan:
        """The plan with the fewest bytes."""
        return min(self.smallest_plans, key=lambda plan: (plan.requested, plan.seconds))

    @cached_property
    def smallest_plans(self) -> list[StepPlan]:
        """Plans of which one has the fewest bytes, whatever the batch is: those of the fewest bytes
        of the dynamic program, and all layers checkpointed, in place. The peak of the former may be
        that of the gradients, beside which activations do not count as with more samples."""
        last = self._sequences[-LEAST_PLANS_TRIED:]
        made = [self._lowered(sequence, self.options, True) for sequence in last]
        return [*made, self._plan(self.checkpointed().executions, in_place=True)]

    @property
    def frontier(self) -> list[FrontierPoint]:
        """The plans by bytes and slowdown."""
        return [FrontierPoint(plan.requested, self.slowdown(plan)) for plan in self.plans]

    def smallest(self, way: WayName) -> list[StepPlan]:
        """What a way may run with the fewest bytes."""
        if way == "eager":
            return [self.eager]
        return [self.checkpointed()] if way == "checkpoint" else self.smallest_plans

    def requests(self, plan: StepPlan) -> list[int]:
        """The bytes of the card that each run of a plan of this step, or of one of other samples,
        requests in all."""
        return [self.resident + run.peak for run in self._runs(plan.executions, plan.in_place)]

    def slowdown(self, plan: StepPlan) -> float:
        """The time of a plan relative to the step as it is."""
        return plan.seconds / self.eager.seconds

    def reserved(self, plan: StepPlan) -> int:
        """The bytes of the card that a plan takes in all."""
        return self.reserved_by(self.schedule(plan))

    def schedule(self, plan: StepPlan) -> list[ScheduleStep]:
        """The schedule of a plan."""
        lowering = ScheduleLowering(self.graph, self.problem)
        return lowering.schedule(plan.executions, plan.in_place)

    def reserved_by(self, steps: Sequence[ScheduleStep]) -> int:
        """As `reserved`, of the schedule of a plan."""
        return simulate_cuda_memory(self.graph, self.costs, steps).renewed + self.states

    def fit_plan(self, memory: int) -> tuple[StepPlan, int]:
        """The fastest plan known within the bytes of a card, and what it reserves; that with the
        fewest bytes where none is."""
        room = memory
        for _ in range(MAX_RESERVED_TRIES):
            plan = next((plan for plan in self.plans if plan.requested <= room), None)
            if plan is None:
                break
            taken = self.reserved(plan)
            if taken <= memory:
                return plan, taken
            room = plan.requested - max(taken - memory, 1)
        return self.least_plan, self.taken(self.least_plan, memory)

    def taken(self, plan: StepPlan, memory: int) -> int:
        """What a plan reserves; what it requests where that is more than a card has already."""
        return plan.requested if plan.requested > memory else self.reserved(plan)

    def fit(self, way: WayName, memory: int) -> WayFit:
        """How the step fits in one of the ways that keep all on the card."""
        if way == "plan":
            plan, taken = self.fit_plan(memory)
        else:
            [plan] = self.smallest(way)
            taken = self.taken(plan, memory)
        return WayFit(way, taken <= memory, taken, self.slowdown(plan))

    def least_recomputed_layers(self, memory: int) -> int:
        """The fewest layers for which it is known that the step fits if these are checkpointed; it
        does with all."""
        low, high = 0, self.layers
        while low < high:
            middle = (low + high) // 2
            plan = self.checkpointed(middle)
            if self.taken(plan, memory) <= memory:
                high = middle
            else:
                low = middle + 1
        return high

    def _lowered(
        self,
        sequence: Sequence[ChainOperation],
        options: Mapping[str, list[BlockOption]],
        in_place: bool,
    ) -> StepPlan:
        ops = lower_to_executions(self.problem, self.blocks, options, sequence)
        return self._plan(ops, in_place)

    @cached_property
    def positions(self) -> dict[int, int]:
        """The places of ops in the step."""
        return {node.op: place for place, node in enumerate(self.problem.nodes)}

    @cached_property
    def _always_seconds(self) -> float:
        """Views and updates, which every plan runs once."""
        views = total_view_seconds(self.graph, self.costs)
        return views + sum(cost.seconds for cost in self.updates.values())

    def _plan(self, ops: Sequence[int], in_place: bool) -> StepPlan:
        played = self._runs(ops, in_place)
        peak = max(each.peak for each in played)
        seconds = sum(each.seconds for each in played) + self._always_seconds
        return StepPlan(ops, in_place, self.resident + peak, seconds)

    def _runs(self, ops: Sequence[int], in_place: bool) -> list[Execution]:
        return simulate_executions(self.problem, [self.positions[op] for op in ops], in_place)
