"""What a training step takes of a GPU: a schedule, played through PyTorch's allocator on paper.

A process begins with parameters, buffers, constants and inputs, and takes two steps; before the
second one the gradients and outputs of the first are gone. Then it goes on as a training loop does:
before each further step new inputs are made, while the old ones are still there. Ops take what was
measured of them, or where nothing was, their outputs and then one block for all else. What
libraries keep, such as the workspaces of cuBLAS, is taken by the first op of each thread that uses
it. The thread of the caller runs the loss and what is before it, autograd's thread the loss's
backward and what comes after.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from tightfit.schemas.actions import (
    Compute,
    ComputeLoss,
    FreeRandomState,
    RestoreRandomState,
    SaveRandomState,
    WriteBuffer,
)
from tightfit.schemas.costs import RECOMPUTE_VARIANT, Costs, OpAllocations, OpCost
from tightfit.schemas.graph.recompute_variants import find_recompute_values
from tightfit.schemas.graph.training_graph import NO_VALUE, Graph, Op
from tightfit.schemas.schedule import ScheduleStep
from tightfit.stages.simulate.allocator_settings import settings_from_build
from tightfit.stages.simulate.caching_allocator import (
    MIN_LARGE_ALLOC,
    ROUND_LARGE,
    AllocatorBytes,
    CachingAllocator,
)
from tightfit.stages.simulate.effects import Effect, schedule_effects

STEPS_ON_SAME_INPUTS = 2
"""The steps that are played on the same inputs: the second finds free what the first has left."""

STEPS_ON_NEW_INPUTS = 2
"""The steps that are played after them, each on new inputs."""

ARENA_SHARES = (1.0, 0.95)
"""Sizes of an arena that are tried, as shares of what a step requests."""


@dataclass(frozen=True)
class CudaMemory:
    """The most bytes of a GPU at any moment, by the three ways to count them, with all that the
    process had before the step. `renewed` is what is reserved where steps on new inputs follow,
    `workspaces` are those of the requested bytes that libraries keep, `arena` is the segment that
    was taken ahead."""

    most: AllocatorBytes
    renewed: int
    workspaces: int
    arena: int = 0


def simulate_cuda_memory(
    graph: Graph, costs: Costs, steps: Sequence[ScheduleStep], arena: int = 0
) -> CudaMemory:
    """What a schedule that the simulator lets pass takes of the GPU that the costs are of.

    With an `arena`, so many bytes are taken ahead of the first step and given back at once: the
    allocator keeps their segment, and serves the steps from it. Pieces of one segment join again
    when they are free, those of several do not. Raises ConfigError where the costs were measured
    with settings of the allocator that are not followed.
    """
    process = _CudaProcess(graph, costs, CachingAllocator(settings_from_build(costs.device.build)))
    process.begin()
    if arena:
        process.allocator.free(process.take(arena))
    walked = list(schedule_effects(graph, steps))
    for _ in range(STEPS_ON_SAME_INPUTS):
        process.step(walked)
    most = process.allocator.peak
    if process.inputs:
        for _ in range(STEPS_ON_NEW_INPUTS):
            process.renew_inputs()
            process.step(walked)
    return CudaMemory(most, process.allocator.peak.reserved, process.workspaces, arena)


def minimize_reserved_memory(
    graph: Graph, costs: Costs, steps: Sequence[ScheduleStep], enough: int | None = None
) -> CudaMemory:
    """What a schedule takes where as little is reserved as is known how: with an arena of some size
    or, where that is no more than `enough` bytes, without. No more is requested with an arena."""
    plain = simulate_cuda_memory(graph, costs, steps)
    if enough is not None and plain.renewed <= enough:
        return plain
    best = plain
    for size in _arena_sizes(graph, plain):
        best = min(
            best, simulate_cuda_memory(graph, costs, steps, size), key=lambda found: found.renewed
        )
        if enough is not None and best.renewed <= enough:
            break
    return best


def _arena_sizes(graph: Graph, plain: CudaMemory) -> list[int]:
    """The sizes of arenas to try: of segments of their own, and less than the step requests."""
    there = sum(graph.storages[storage] for storage in graph.baseline_storages())
    own = plain.most.requested - plain.workspaces - there
    sizes = (int(own * share) // ROUND_LARGE * ROUND_LARGE for share in ARENA_SHARES)
    return [size for size in dict.fromkeys(sizes) if size >= MIN_LARGE_ALLOC]


@dataclass
class _CudaProcess:
    """The blocks of a process, by the storage that they hold.

    `inputs` are the storages of inputs, `further` the blocks of a step that hold no storage,
    `states` the blocks of random states by op, and `restoring` that of one while it is set again.
    `kept` is how many blocks of a size libraries keep, by whether these are in autograd's thread.
    """

    graph: Graph
    costs: Costs
    allocator: CachingAllocator
    blocks: dict[int, int] = field(default_factory=dict)
    inputs: list[int] = field(default_factory=list)
    further: list[int] = field(default_factory=list)
    states: dict[int, int] = field(default_factory=dict)
    kept: dict[bool, Counter[int]] = field(
        default_factory=lambda: {False: Counter(), True: Counter()}
    )
    workspaces: int = 0
    after_loss: bool = False
    restoring: int | None = None
    _named: int = 0
    _assumed: dict[tuple[str, int, tuple[int, ...]], OpAllocations] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.fixed = self.graph.baseline_storages()
        self.views = self.graph.view_ops()

    def begin(self) -> None:
        """What is there before the first step."""
        for kind in ("parameter", "buffer", "constant", "input"):
            for value in self.graph.values:
                if value.kind == kind and value.storage not in self.blocks:
                    self.blocks[value.storage] = self.take(self.graph.storages[value.storage])
                    if kind == "input":
                        self.inputs.append(value.storage)

    def renew_inputs(self) -> None:
        """The caller makes the inputs of the next step, and lets the old ones go."""
        old = [self.blocks[storage] for storage in self.inputs]
        for storage in self.inputs:
            self.blocks[storage] = self.take(self.graph.storages[storage])
        for block in old:
            self.allocator.free(block)

    def step(self, walked: Sequence[Effect]) -> None:
        """All steps of the schedule, and its end."""
        for effect in walked:
            self.play(effect)
        self.end_step()

    def play(self, effect: Effect) -> None:
        """One step of the schedule."""
        action = effect.step.action
        if effect.runs and effect.op is not None and effect.op.id not in self.views:
            self.run(effect, effect.op)
            return
        if isinstance(action, SaveRandomState):
            self.states[action.op] = self.take(self.costs.random_state().net)
        elif isinstance(action, RestoreRandomState):
            self.restoring = self.take(self.costs.random_state().net)
        elif isinstance(action, FreeRandomState):
            self.allocator.free(self.states.pop(action.op))
        for value in effect.returns:
            storage = self.graph.values[value].storage
            self.blocks[storage] = self.take(self.graph.storages[storage])
        for storage in effect.drops:
            self.allocator.free(self.blocks.pop(storage))

    def end_step(self) -> None:
        """The caller lets outputs and gradients go."""
        for storage in [storage for storage in self.blocks if storage not in self.fixed]:
            self.allocator.free(self.blocks.pop(storage))
        for block in self.further:
            self.allocator.free(block)
        self.further, self.after_loss = [], False

    def run(self, effect: Effect, op: Op) -> None:
        """An op: what libraries keep, then its own; an output takes over what is overwritten."""
        action = effect.step.action
        in_place = action.in_place if isinstance(action, Compute | WriteBuffer) else NO_VALUE
        repeated = effect.repeated and find_recompute_values(self.graph, op) is not None
        cost = self.costs.of(self.graph, op, RECOMPUTE_VARIANT if repeated else in_place)
        made = self.new_storages(effect)
        for storage in effect.drops:
            self.blocks[made.pop(0)] = self.blocks.pop(storage)
        asked = cost.allocations or self.assumed(cost, made)
        self.keep(asked)
        staying = self.moved(asked)
        for storage in made:
            self.blocks[storage] = self.claimed(staying, self.graph.storages[storage])
        rest = [block for block, _ in staying]
        if self.restoring is not None:
            rest.append(self.restoring)
            self.restoring = None
        if isinstance(action, ComputeLoss):
            self.further += rest
            self.after_loss = True
            return
        for block in rest:
            self.allocator.free(block)

    def new_storages(self, effect: Effect) -> list[int]:
        """The storages that a run makes, in the order of its outputs; what it overwrites makes
        place for the first."""
        storages = dict.fromkeys(self.graph.values[value].storage for value in effect.makes)
        return [
            storage for storage in storages if storage not in self.blocks or storage in effect.drops
        ]

    def assumed(self, cost: OpCost, made: Sequence[int]) -> OpAllocations:
        """What an op is taken to ask for of which only the peak is known."""
        sizes = tuple(self.graph.storages[storage] for storage in made)
        key = cost.key, cost.in_place, sizes
        if key not in self._assumed:
            self._assumed[key] = _assumed_allocations(cost, sizes)
        return self._assumed[key]

    def keep(self, asked: OpAllocations) -> None:
        """Takes what libraries keep in this thread and, for a loss, in autograd's, unless it is
        there."""
        for lasting, kept in (
            (asked.lasting, self.kept[self.after_loss]),
            (asked.lasting_backward, self.kept[True]),
        ):
            for size in (Counter(lasting) - kept).elements() if lasting else ():
                kept[size] += 1
                self.take(size)
                self.workspaces += size

    def moved(self, asked: OpAllocations) -> list[tuple[int, int]]:
        """Takes and gives back what an op does; returns the blocks that stay, with their bytes."""
        taken: list[tuple[int, int]] = []
        for move in asked.moves:
            if move > 0:
                taken.append((self.take(move), move))
            else:
                self.allocator.free(taken[-move - 1][0])
        return [taken[number - 1] for number in asked.staying()]

    def claimed(self, staying: list[tuple[int, int]], size: int) -> int:
        """The first of the blocks that stay that has a size; a new one where none has."""
        for place, (block, bytes_) in enumerate(staying):
            if bytes_ == size:
                del staying[place]
                return block
        return self.take(size)

    def take(self, size: int) -> int:
        """The name of a new block."""
        self._named += 1
        self.allocator.allocate(self._named, size)
        return self._named


def _assumed_allocations(cost: OpCost, outputs: Sequence[int]) -> OpAllocations:
    """The allocations of an op of which only the peak is known: its outputs in their order, what it
    leaves beyond them, and one block that it gives back."""
    beyond = max(cost.net - sum(outputs), 0)
    made = [size for size in (*outputs, beyond) if size > 0]
    own = cost.peak - sum(made)
    return OpAllocations([*made, *([own, -len(made) - 1] if own > 0 else [])], [])
