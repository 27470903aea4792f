"""How a step fits on a card whose parameters and optimizer states wait in host memory.

Parameters of 1 MiB and more come for the ops that read them and leave again, in forward and
backward; their gradients leave, and the host updates them. Bytes of the card are those that are
requested. Times are given as a range: from transfers and updates that all overlap computation to
none that does.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from tightfit.schemas.card_fit import WayFit
from tightfit.schemas.graph.offloadable_parameters import (
    MIN_OFFLOAD_BYTES,
    offloadable_parameters,
)
from tightfit.schemas.graph.planning_graph import PlanningGraph
from tightfit.schemas.link import HostLink
from tightfit.stages.combine.card_fit import CardStep, StepPlan
from tightfit.stages.combine.optimizer_offload.min_memory import (
    memory_needs,
    problem_with_parameters,
)
from tightfit.stages.combine.optimizer_offload.optimizer_in_backward import update_costs_from_spec
from tightfit.stages.combine.optimizer_offload.problem import OffloadProblem
from tightfit.stages.simulate.liveness import simulate_executions


@dataclass(frozen=True)
class CardOffload:
    """A step on a card with a link to host memory, beside which a processor reads and writes so
    many bytes a second."""

    step: CardStep
    link: HostLink
    host_bandwidth: float

    @cached_property
    def task(self) -> OffloadProblem:
        """The step with its optimizer as planners of offload see it."""
        step, graph = self.step, self.step.graph
        updates = update_costs_from_spec(graph, step.device, self.host_bandwidth, step.optimizer)
        found = offloadable_parameters(graph, MIN_OFFLOAD_BYTES, moves=False)
        link = replace(self.link, device=graph.device)
        memory = step.device.memory
        return OffloadProblem(graph, step.costs, step.problem, link, updates, found, memory)

    @cached_property
    def least_bytes(self) -> int:
        """Bytes of the card that every plan takes, with offload."""
        most = max(need.bytes for need in memory_needs(self.task))
        return most + self.task.fixed + self.task.min_staging_bytes

    @cached_property
    def _problem(self) -> PlanningGraph:
        return problem_with_parameters(self.task, here=False)

    @cached_property
    def _transit_bytes(self) -> int:
        """The bytes of the card that the next parameter, or the last gradient, takes on its way."""
        sizes = self.task.graph.storages
        return max((sizes[storage] for storage in self.task.remote), default=0)

    def requests(self, plan: StepPlan) -> list[int]:
        """The bytes of the card that each run of a plan requests in all."""
        places = [self.step.positions[op] for op in plan.executions]
        always = self.task.fixed + self.task.min_staging_bytes + self._transit_bytes
        return [
            always + run.peak for run in simulate_executions(self._problem, places, in_place=True)
        ]

    def requested(self, plan: StepPlan) -> int:
        """The most bytes of the card that a plan requests."""
        return max(self.requests(plan))

    @cached_property
    def host_bytes(self) -> int:
        """The bytes of parameters and states in host memory, and of gradients on their way."""
        task = self.task
        return task.played(frozenset(), here=False).host_bytes(task.graph) + self._transit_bytes

    def fit(self, memory: int) -> WayFit:
        """The fastest plan known within the bytes of a card; that with the fewest where none is."""
        low, high = 0, len(self.step.plans) - 1
        while low < high:
            middle = (low + high) // 2
            if self.requested(self.step.plans[middle]) <= memory:
                high = middle
            else:
                low = middle + 1
        plan = self.step.plans[low]
        if self.requested(plan) > memory:
            plan = min(self.step.smallest_plans, key=self.requested)
        taken, computed = self.requested(plan), plan.seconds - self._device_update_seconds
        parts = [computed, *self._other_seconds]
        unit = self.step.eager.seconds
        return WayFit(
            "offload",
            taken <= memory and self.host_bytes <= self.link.room,
            taken,
            max(parts) / unit,
            sum(parts) / unit,
            self.host_bytes,
        )

    @property
    def _device_update_seconds(self) -> float:
        """What updates would take on the card of the parameters that the host updates."""
        moved = set(self.task.remote.values())
        return sum(cost.seconds for value, cost in self.step.updates.items() if value in moved)

    @property
    def _other_seconds(self) -> list[float]:
        """Seconds of transfers to the card, of those from it, and of updates on the host."""
        task, sizes = self.task, self.task.graph.storages
        trained = [storage for storage, value in task.remote.items() if value in task.updates]
        comes = 2 * sum(task.link.seconds(sizes[storage]) for storage in task.remote)
        leaves = sum(task.link.seconds(sizes[storage]) for storage in trained)
        updates = sum(task.updates[task.remote[storage]].host_seconds for storage in trained)
        return [comes + leaves, updates] if task.link.shared else [comes, leaves, updates]
