"""A whole step to be planned: what is where, and what of the device is left to it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from tightfit.schemas.costs import Costs
from tightfit.schemas.graph.offloadable_parameters import offloadable_parameters, value_bytes
from tightfit.schemas.graph.ownership import caller_owned_storages, partial_gradients_by_owner
from tightfit.schemas.graph.planning_graph import PlanningGraph
from tightfit.schemas.graph.tensor_layout import DTYPE_BYTES
from tightfit.schemas.graph.training_graph import Graph, GraphValue
from tightfit.schemas.link import HostLink
from tightfit.schemas.optimizer_plan import (
    LinkSpeed,
    OptimizerCosts,
    OptimizerPlan,
    ParameterUpdateCost,
    SecondTierStates,
)
from tightfit.stages.combine.memory_budget import baseline_bytes
from tightfit.stages.combine.optimizer_offload.gradient_accumulation import gradient_bytes
from tightfit.stages.combine.optimizer_offload.min_memory import (
    OffloadTargetTooSmallError,
    check_min_memory,
)
from tightfit.stages.combine.optimizer_offload.search_space import (
    BUFFER_COUNTS,
    LINK_SHARES,
    STAGING_BUFFERS,
)
from tightfit.stages.simulate.planning_graph import build_planning_graph
from tightfit.util.errors import ConfigError
from tightfit.util.solver_engines import HIGHS_ENGINE, SolverEngine

DISK = "disk"
PART_BYTES = 1 << 18
"""Bytes of a parameter that are updated together on a disk
(`stages/runtime/offload/host_update.py`)."""
BOUNCE_BUFFER_BYTES = 1 << 18
"""Bytes of the host that pass between two disks in each direction
(`stages/runtime/offload/second_tier.py`)."""


@dataclass(frozen=True)
class OffloadProblem:
    """A training step with an optimizer, on a device with a link to an offload target.

    `updates` are by parameter; `remote` are the parameters that live in the offload target, by
    storage, in the order of their first use. The small others stay on the device with their states.
    `budget` are the bytes of the device for everything. Of several `microbatches` each runs the
    graph, and the last one updates. Some states are in a second offload tier, where they are `far`.
    Updates that were `measured` are run: all states live in the offload target then, but for those
    of the `resident` parameters, which are updated on the device. Where gradients of microbatches
    are `accumulating` on the device, the budget counts their bytes. The `engine` solves the integer
    programs of drafts. A task in which further parameters were chosen to stay on the device says of
    which `wider` one it is. Where `activations_stay`, none of them waits in the offload target."""

    graph: Graph
    costs: Costs
    problem: PlanningGraph
    link: HostLink
    updates: Mapping[int, ParameterUpdateCost]
    remote: Mapping[int, int]
    budget: int
    microbatches: int = 1
    far: SecondTierStates | None = None
    measured: OptimizerCosts | None = None
    accumulating: bool = False
    engine: SolverEngine = HIGHS_ENGINE
    resident: frozenset[int] = frozenset()
    unrestricted_problem: OffloadProblem | None = None
    activations_stay: bool = False

    @property
    def small(self) -> frozenset[int]:
        """The parameters that live on the device and are updated there."""
        return frozenset(self.updates) - frozenset(self.remote.values())

    @property
    def on_device(self) -> frozenset[int]:
        """Those whose states live on the device, too."""
        return self.small if self.measured is None else self.resident

    @cached_property
    def fixed(self) -> int:
        """Bytes that are on the device all the time: inputs, buffers, and parameters that stay
        there with their states, and the sums of their gradients, or of all gradients; no staging
        buffers."""
        graph = self.graph
        remote = sum(graph.storages[storage] for storage in self.remote)
        states = sum(self.updates[value].states for value in self.on_device)
        fixed = baseline_bytes(graph)
        sums = gradient_bytes(graph, self.updates) if self.accumulating else self.sums
        return fixed.bytes_before_step - remote + states + sums

    @cached_property
    def sums(self) -> int:
        """The bytes of the gradients of earlier microbatches that are on the device in the last."""
        if self.microbatches == 1:
            return 0
        remote = sum(self.graph.storages[storage] for storage in self.remote)
        return baseline_bytes(self.graph).parameters - remote

    @property
    def room(self) -> int:
        """What the budget leaves to the step and to staging buffers, where it has some."""
        return self.budget - self.fixed

    @property
    def overlaps_steps(self) -> bool:
        """Whether steps may follow each other without a seam: those of a plan that is run do not
        yet."""
        return self.measured is None and self.microbatches == 1 and self.far is None

    @property
    def updates_on_host(self) -> bool:
        """Whether parameters can be updated in the offload target."""
        return any(cost.host_seconds != math.inf for cost in self.updates.values())

    @property
    def device_updates_first(self) -> bool:
        """Whether all updates are the device's in the plans that are tried at first."""
        one = self.measured is not None and self.microbatches == 1
        return one or not self.updates_on_host

    def device_updated_parameters(self, most: bool) -> frozenset[int]:
        """The parameters whose updates have to be the device's; with `most` all whose may be."""
        if not most and self.updates_on_host:
            return self.small | self.resident
        return frozenset(self.updates) - (self.far.values if self.far else frozenset())

    @property
    def min_staging_bytes(self) -> int:
        """The bytes of the staging buffers that every plan has."""
        return self.played(frozenset(), here=not self.updates_on_host).staging

    def update_peak(self, value: int) -> int:
        """The most bytes of an update on the device beyond parameter, gradient and staging, in the
        first step, too, where that was measured."""
        cost = self.updates[value]
        return cost.peak if self.measured is None else max(cost.peak, cost.first[0])

    @property
    def scalar_state_bytes(self) -> int:
        """The bytes that the first updates leave on the device, states that are numbers."""
        if self.measured is None:
            return 0
        return sum(max(cost.first[1], 0) for cost in self.updates.values())

    @property
    def link_shares(self) -> tuple[float, ...]:
        """The parts of the link that activations may take, ascending."""
        return (0.0,) if self.activations_stay else (0.0, *LINK_SHARES)

    @property
    def buffer_counts(self) -> tuple[int, ...]:
        """The numbers of staging buffers that plans may have: updates that are run have one."""
        return BUFFER_COUNTS if self.measured is None else (STAGING_BUFFERS,)

    def played(
        self,
        there: frozenset[int],
        here: bool,
        adds: bool = False,
        away: bool = True,
        buffers: int = STAGING_BUFFERS,
    ) -> OptimizerPlan:
        """The optimizer as the simulator takes it; states pass through staging `buffers` where some
        parameters that live in the offload target are updated `here`, and updates take the
        `host_workspace_bytes` where some are updated `away`. A microbatch that is not the last one
        `adds`."""
        return OptimizerPlan(
            costs=self.updates,
            speed=LinkSpeed.of(self.link),
            buffers=buffers if here or self.measured is not None else 0,
            on_device=self.on_device,
            offloaded=frozenset(self.remote.values()),
            resident=there,
            accumulates=adds,
            has_sums=self.microbatches > 1 and not adds,
            second_tier=self.far,
            optimizer="" if self.measured is None else self.measured.optimizer,
            piece_bytes=0 if self.measured is None else self.measured.piece,
            workspace_bytes=self.host_workspace_bytes if away or self.far is not None else 0,
            microbatches=self.microbatches,
            settings={} if self.measured is None else self.measured.settings,
        )

    @property
    def host_workspace_bytes(self) -> int:
        """The most bytes of the device that updates in the offload target take where that is a
        disk: buffers that a part of parameter, gradient, states and sum passes through, what an
        update takes beside these, and what passes between that disk and a second offload tier."""
        trained = [value for value in self.remote.values() if value in self.updates]
        if self.measured is None or self.link.to != DISK or not trained:
            return 0
        if all(self.updates[value].host_seconds == math.inf for value in trained):
            return 0
        most = min(PART_BYTES, self.measured.piece)
        parts = [min(_part_bytes(self.graph.values[v], most), self.size(v)) for v in trained]
        states = max(_state_count(self.updates[v], self.size(v)) for v in trained)
        buffers = max(parts) * (2 + states + (self.microbatches > 1))
        if self.far is not None:
            buffers += 2 * min(
                BOUNCE_BUFFER_BYTES, self.far.staging(self.updates) // self.far.buffers
            )
        return buffers + max(self.updates[value].host_peak for value in trained)

    def size(self, value: int) -> int:
        """The bytes of the storage of a value."""
        return self.graph.storages[self.graph.values[value].storage]

    @property
    def leaving(self) -> frozenset[int]:
        """The parameters that can be updated in the offload target: of described updates all, else
        those whose gradients, as they are handed over, are storages of their own."""
        if self.measured is None:
            return frozenset(self.updates)
        return _host_updatable_parameters(self.graph)

    @property
    def loose(self) -> PlanningGraph:
        """The step as planning sees it where gradients do not stay: they are used up at once. What
        makes one does not run again, since it would be made anew before it is handed over."""
        problem = self.problem
        gradients = {n for n, storage in enumerate(problem.storages) if storage.gradient}
        storages = [replace(storage, gradient=False) for storage in problem.storages]
        nodes = [
            node if gradients.isdisjoint(node.outputs) else replace(node, repeatable=False)
            for node in problem.nodes
        ]
        return replace(problem, storages=storages, nodes=nodes)

    def check_tier_capacities(self) -> None:
        """Raises OffloadTargetTooSmallError where a memory has no room for what is always in it,
        and ConfigError where one cannot be reached."""
        link, far = self.link, self.far
        played = self.played(frozenset(), here=False)
        there = played.host_bytes(self.graph)
        if there > link.room:
            raise OffloadTargetTooSmallError(
                f"{_host_contents_message(played)} take {there:,} bytes in {link.other}, which has "
                f"{int(link.room):,}, and what moves takes more",
                lacks_second_tier=far is None,
            )
        if far is None:
            return
        states = far.states(self.updates)
        if states > far.link.room:
            raise OffloadTargetTooSmallError(
                f"states take {states:,} bytes in {far.link.other}, which has "
                f"{int(far.link.room):,}, since {link.other} has no room for them"
            )
        if far.link.bandwidth == 0:
            raise ConfigError(
                f"the link between {link.to} and {far.link.to} has no bandwidth, and states have "
                "to take it"
            )

    @property
    def keep_all_seconds(self) -> float:
        """Seconds of the step where everything is on the device."""
        computed = sum(node.seconds for node in self.problem.nodes)
        return self.microbatches * computed + sum(cost.seconds for cost in self.updates.values())

    @property
    def min_device_update_seconds(self) -> float:
        """Seconds that a step takes at least of which all updates that may be are the device's: all
        is computed, and states pass the link."""
        here = self.device_updated_parameters(most=True)
        computed = sum(node.least_seconds for node in self.problem.nodes)
        computed += sum(cost.seconds for value, cost in self.updates.items() if value in here)
        passing = sum(self.updates[value].states for value in here - self.on_device)
        ways = 2 if self.link.shared else 1
        return max(computed, ways * passing / self.link.bandwidth)


def _host_contents_message(played: OptimizerPlan) -> str:
    """What is in the offload target from one step to the next, in words."""
    buffers = played.second_tier.staging(played.costs) if played.second_tier else 0
    parts = {
        "parameters": bool(played.offloaded),
        "sums of gradients": bool(played.offloaded) and played.has_sums,
        "optimizer states": played.offloaded_state_bytes > buffers,
        "the buffers that states of a second offload tier pass through": buffers > 0,
    }
    words = [part for part, there in parts.items() if there]
    return " and ".join([", ".join(words[:-1]), words[-1]] if words[1:] else words)


def build_offload_problem(
    graph: Graph,
    costs: Costs,
    link: HostLink,
    updates: Mapping[int, ParameterUpdateCost],
    budget: int,
    least: float,
    microbatches: int = 1,
    measured: OptimizerCosts | None = None,
) -> OffloadProblem:
    """The task in which parameters of at least `least` bytes live in the offload target. Raises
    ConfigError where the budget is below what an op needs, the link has no bandwidth, or a
    parameter has no measured update."""
    found = offloadable_parameters(graph, least, measured is not None)
    if measured is not None and microbatches > 1:
        leave = _host_updatable_parameters(graph) | {v for v in found.values() if v not in updates}
        found = {storage: value for storage, value in found.items() if value in leave}
    problem = build_planning_graph(graph, costs)
    task = OffloadProblem(
        graph, costs, problem, link, updates, found, budget, microbatches, measured=measured
    )
    _check_problem(task)
    return task


def _host_updatable_parameters(graph: Graph) -> frozenset[int]:
    """The parameters whose gradients have all bytes of a storage for themselves, and as many as
    their parameters."""
    parts = {owner: found[0] for owner, found in partial_gradients_by_owner(graph).items()}
    owners = Counter(graph.values[gradient].storage for gradient in parts.values())
    held = caller_owned_storages(graph)

    def leaves(owner: int, gradient: int) -> bool:
        own, found = graph.values[owner], graph.values[gradient]
        whole = graph.storages[found.storage] == graph.storages[own.storage] == value_bytes(found)
        return (
            whole
            and owners[found.storage] == 1
            and found.storage not in held
            and (found.dtype, found.strides) == (own.dtype, own.strides)
        )

    return frozenset(owner for owner, gradient in parts.items() if leaves(owner, gradient))


def _state_count(cost: ParameterUpdateCost, size: int) -> int:
    """How many tensors of a parameter's size an optimizer keeps of it: pieces are a little larger
    than their parts of it."""
    return cost.states // size if size else 0


def _part_bytes(value: GraphValue, most: int) -> int:
    """The bytes of a parameter that are updated together, of `most` as far as that can be
    (`split_into_chunks` in `stages/runtime/offload/host_update.py`)."""
    size = DTYPE_BYTES[value.dtype]
    return max(most // size // 64, 1) * 64 * size


def _check_problem(task: OffloadProblem) -> None:
    graph, link = task.graph, task.link
    if link.bandwidth == 0:
        raise ConfigError(
            f"the link between {link.device} and {link.to} has no bandwidth, and parameters and "
            "states have to take it"
        )
    if task.measured is not None:
        trained = (gradient.value for gradient in graph.gradients)
        for value in trained:
            if graph.values[value].kind == "parameter" and value not in task.updates:
                raise ConfigError(
                    f"{graph.values[value].path} has a gradient, and is not among the parameters "
                    "that the optimizer updates"
                )
    check_min_memory(task)
