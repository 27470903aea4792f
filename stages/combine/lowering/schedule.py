"""Opens the actions of a plan into a schedule: views, frees, random states, gradients, waits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from tightfit.schemas.actions import (
    Action,
    Compute,
    Free,
    FreeHostCopy,
    FreeRandomState,
    Offload,
    OpAction,
    PassGradient,
    Prefetch,
    RestoreRandomState,
    SaveRandomState,
    Wait,
    op_action,
)
from tightfit.schemas.costs import Costs
from tightfit.schemas.frontier import ParetoPoint
from tightfit.schemas.graph.ownership import partial_gradients_by_owner, previous_partial_gradients
from tightfit.schemas.graph.planning_graph import PlanningGraph
from tightfit.schemas.graph.recompute_variants import execution_inputs, execution_outputs
from tightfit.schemas.graph.training_graph import LOSS_TARGET, NO_VALUE, Graph, Op
from tightfit.schemas.schedule import ScheduleStep
from tightfit.stages.simulate.liveness import Execution
from tightfit.stages.simulate.liveness import simulate_executions as executions_of
from tightfit.stages.simulate.planning_graph import build_planning_graph
from tightfit.stages.simulate.simulate import pause_gc
from tightfit.util.errors import ScheduleError

BACKWARD_SEGMENTS = 48
"""Gradients are handed to autograd when a slice holds this part of all their bytes: each slice
costs the generated module one call, and accumulation frees its gradients together."""


def lower_to_schedule(
    graph: Graph, costs: Costs, executions: Sequence[int], in_place: bool
) -> list[ScheduleStep]:
    """The schedule of a sequence of executions: see `ScheduleLowering.schedule`."""
    return ScheduleLowering(graph, build_planning_graph(graph, costs)).schedule(
        executions, in_place
    )


class ScheduleLowering:
    """Opens sequences of executions of one graph; `problem` is the graph condensed. Gradients are
    handed over in about `slices` parts."""

    def __init__(
        self, graph: Graph, problem: PlanningGraph, slices: int = BACKWARD_SEGMENTS
    ) -> None:
        self.graph = graph
        self.slices = slices
        self.problem = problem
        self.positions = {problem.op_at(position): position for position in problem.positions}

    def schedule(
        self, executions: Sequence[int], in_place: bool, ceiling: int = 0
    ) -> list[ScheduleStep]:
        """The schedule that runs the ops `executions` (ids of ops that are no views, the loss
        included, and of alternatives) in this order.

        Every storage is freed right after its last use before it is made again; a view is made
        right before it is first read and again after its storage was made again. `in_place` and
        `ceiling` say where ops overwrite their inputs (`stages.simulate.liveness`). Raises
        ScheduleError for an id that is no such op."""
        return self._opened(executions, {}, in_place, ceiling)

    def plain_positions(self, executions: Sequence[int]) -> list[int]:
        """The positions of the nodes that run, by ops or alternatives."""
        return [self.problem.node_at(self.positions[op]) for op in executions]

    def opened(self, point: ParetoPoint) -> list[ScheduleStep]:
        """The schedule of a point of a frontier."""
        return self.of_actions(point.actions, point.in_place, point.in_place_threshold)

    def of_actions(
        self, actions: Iterable[Action], in_place: bool, ceiling: int = 0
    ) -> list[ScheduleStep]:
        """As `schedule`, of the actions of a plan, which may have transfers.

        A storage that was sent leaves where its `Free` stands, after a wait, and comes back where
        its `Prefetch` stands, with its views; what reads it waits first. The copy of a storage is
        freed when it has come back for the last time; a storage that has one is not sent again.
        Raises ScheduleError for any other action.
        """
        executions: list[int] = []
        linked: dict[int, list[Offload | Prefetch | Free]] = {}
        for action in actions:
            if isinstance(action, OpAction):
                executions.append(action.op)
            elif isinstance(action, Offload | Prefetch | Free):
                linked.setdefault(len(executions), []).append(action)
            else:
                raise ScheduleError(f"a plan has {action}, which is added to it")
        return self._opened(executions, linked, in_place, ceiling)

    @pause_gc()
    def _opened(
        self,
        executions: Sequence[int],
        linked: dict[int, list[Offload | Prefetch | Free]],
        in_place: bool,
        ceiling: int,
    ) -> list[ScheduleStep]:
        unknown = [op for op in executions if op not in self.positions]
        if unknown:
            raise ScheduleError(f"op {unknown[0]} is a view or no op of the graph")
        sequence = [self.positions[op] for op in executions]
        moved = {place: sum(map(self._change, actions)) for place, actions in linked.items()}
        runs = executions_of(self.problem, sequence, in_place, ceiling, moved)
        return _ScheduleBuilder(self.graph, runs, linked, self.slices).steps()

    def _change(self, action: Offload | Prefetch | Free) -> int:
        """The bytes that an action brings to the device, negative where it takes some."""
        if not 0 <= action.value < len(self.graph.values):
            raise ScheduleError(f"a plan moves value {action.value}, which the graph does not have")
        if isinstance(action, Offload):
            return 0
        size = self.graph.storages[self.graph.values[action.value].storage]
        return size if isinstance(action, Prefetch) else -size


class _ScheduleBuilder:
    def __init__(
        self,
        graph: Graph,
        runs: list[Execution],
        linked: dict[int, list[Offload | Prefetch | Free]],
        slices: int,
    ) -> None:
        self.graph = graph
        self.runs = runs
        self.linked = linked
        self.away = _OffloadedStorages(graph, linked)
        self.maker = graph.makers()
        self.views = graph.view_ops()
        self.live: set[int] = set()
        self.offloaded_views: dict[int, set[int]] = {}
        self.values: dict[int, list[int]] = {}
        for value in graph.values:
            self.values.setdefault(value.storage, []).append(value.id)
        self.runs_left: dict[int, int] = {}
        for run in runs:
            self.runs_left[run.op] = self.runs_left.get(run.op, 0) + 1
        self.out: list[ScheduleStep] = []
        self.handing = _GradientSegments(graph, runs, slices)

    def steps(self) -> list[ScheduleStep]:
        for position, run in enumerate(self.runs):
            for action in self.linked.get(position, ()):
                self.move(action)
            self.execute(position, run, self.graph.op(run.op))
        for action in self.linked.get(len(self.runs), ()):
            self.move(action)
        return self.out

    def move(self, action: Offload | Prefetch | Free) -> None:
        """What a plan sends, frees of what was sent, and brings back."""
        storage = self.graph.values[action.value].storage
        match action:
            case Offload(value):
                if storage in self.away.copies:
                    return
                self.make_view(value)
                self.act(action)
                self.away.moves(storage)
            case Prefetch(value):
                self.act(action)
                self.live.update({value}, self.offloaded_views.pop(storage, ()))
                self.away.mark_prefetched(storage)
            case Free():
                if storage not in self.away.copies:
                    raise ScheduleError(f"a plan frees storage {storage}, which it has not sent")
                self.free(storage)

    def free(self, storage: int) -> None:
        """Frees a storage; one that comes back does so with its views."""
        self.settle(storage)
        self.act(Free(self.any_value(storage)))
        if storage in self.away.copies:
            self.offloaded_views[storage] = self.live.intersection(self.values[storage])
        self.forget(storage)

    def settle(self, storage: int) -> None:
        """Waits for what is on its way, and forgets its copy where that is not needed any more."""
        if storage not in self.away.moving:
            return
        value = self.any_value(storage)
        self.act(Wait(value))
        if self.away.mark_settled(storage):
            self.act(FreeHostCopy(value))

    def act(self, action: Action) -> None:
        self.out.append(ScheduleStep(action))

    def execute(self, position: int, run: Execution, op: Op) -> None:
        reads = execution_inputs(self.graph, op, run.repeated)
        for value in reads if self.linked else ():
            self.settle_before_use(self.graph.values[value].storage)
        for value in reads:
            self.make_view(value)
        if op.target == LOSS_TARGET:
            for output in self.graph.outputs:
                self.make_view(output.value)
        if run.reuse is not None:
            self.settle(run.overwrites)
        self.run(op, run)
        parts: list[int] = []
        for storage in run.drops:
            if storage in self.handing.parts:
                parts.append(self.handing.parts[storage])
                continue
            if storage != run.overwrites and storage < len(self.graph.storages):
                self.free(storage)
            else:
                self.forget(storage)
        parts.sort(key=self.handing.order.index)
        for value in parts + self.handing.ready(position):
            self.make_view(self.handing.first.get(value, value))
            self.make_view(value)
            self.act(PassGradient(value))
        for value in parts:
            self.forget(self.graph.values[value].storage)

    def run(self, op: Op, run: Execution) -> None:
        """The steps of one execution, with the random state before and after it."""
        self.runs_left[op.id] -= 1
        saved = op.random and (self.runs_left[op.id] > 0 or run.repeated)
        if saved:
            self.act(RestoreRandomState(op.id) if run.repeated else SaveRandomState(op.id))
        self.act(op_action(op, self.overwritten(op, run)))
        makes = execution_outputs(self.graph, op, run.repeated)
        self.live.update(makes)
        for storage in self.offloaded_views and {
            self.graph.values[value].storage for value in makes
        }:
            self.offloaded_views.pop(storage, None)
        if saved and self.runs_left[op.id] == 0:
            self.act(FreeRandomState(op.id))

    def overwritten(self, op: Op, run: Execution) -> int:
        if run.reuse is None:
            return NO_VALUE
        values = self.graph.values
        return next(value for value in op.in_place if values[value].storage == run.overwrites)

    def settle_before_use(self, storage: int) -> None:
        """Waits for what comes back."""
        if storage in self.away.coming:
            self.settle(storage)

    def make_view(self, value: int) -> None:
        """Makes a view, and the views it is a view of, unless they are there."""
        pending = [value]
        while pending:
            maker = self.maker.get(pending[-1])
            if maker is None or maker.id not in self.views or pending[-1] in self.live:
                pending.pop()
                continue
            missing = [
                source
                for source in maker.inputs
                if source not in self.live
                and source in self.maker
                and self.maker[source].id in self.views
            ]
            if missing:
                pending.extend(missing)
                continue
            self.act(Compute(maker.id))
            self.live.update(output for output in maker.outputs if output != NO_VALUE)
            pending.pop()

    def any_value(self, storage: int) -> int:
        live = [value for value in self.values[storage] if value in self.live]
        if not live:
            raise ScheduleError(f"the sequence frees storage {storage}, which it has not made")
        return min(live)

    def forget(self, storage: int) -> None:
        self.live.difference_update(self.values.get(storage, ()))


class _OffloadedStorages:
    """What transfers have moved, by storage: `copies` in the offload target, what is `moving` and
    not waited for, of that what is `coming`, and how often each is still to come back."""

    def __init__(self, graph: Graph, linked: dict[int, list[Offload | Prefetch | Free]]) -> None:
        self.copies: set[int] = set()
        self.moving: set[int] = set()
        self.coming: set[int] = set()
        self.returns = Counter(
            graph.values[action.value].storage
            for actions in linked.values()
            for action in actions
            if isinstance(action, Prefetch)
        )

    def moves(self, storage: int) -> None:
        self.copies.add(storage)
        self.moving.add(storage)

    def mark_prefetched(self, storage: int) -> None:
        self.returns[storage] -= 1
        self.moving.add(storage)
        self.coming.add(storage)

    def mark_settled(self, storage: int) -> bool:
        """Takes note of a wait; whether the copy is not needed any more."""
        self.moving.remove(storage)
        self.coming.discard(storage)
        if self.returns[storage]:
            return False
        self.copies.remove(storage)
        return True


class _GradientSegments:
    """Which gradients are handed over after which position: each when it is complete and its owner
    is read no more. `parts` are, by storage, the contributions added to another one at once."""

    def __init__(self, graph: Graph, runs: list[Execution], slices: int) -> None:
        parts = partial_gradients_by_owner(graph)
        storage = [value.storage for value in graph.values]
        self.order = list(previous_partial_gradients(graph))
        self.parts = {storage[value]: value for value in self.order}
        self.first = {part: values[0] for values in parts.values() for part in values}
        last_use = _last_uses(graph, runs, {storage[owner] for owner in parts})
        finished: dict[int, list[int]] = {}
        sizes: dict[int, int] = {}
        for owner, values in parts.items():
            uses = [last_use.get(storage[value], len(runs) - 1) for value in values]
            position = max([last_use.get(storage[owner], 0), *uses])
            finished.setdefault(position, []).append(values[0])
            sizes[values[0]] = graph.storages[storage[values[0]]]
        limit = sum(sizes.values()) / slices
        self.slices: dict[int, list[int]] = {}
        pending: list[int] = []
        for position in sorted(finished):
            pending += finished[position]
            if sum(sizes[value] for value in pending) >= limit or position == max(finished):
                self.slices[position] = pending
                pending = []

    def ready(self, position: int) -> list[int]:
        return self.slices.get(position, [])


def _last_uses(graph: Graph, runs: list[Execution], owners: set[int]) -> dict[int, int]:
    """By storage, the last position that reads or makes it; of fixed storages those of `owners`."""
    last_use: dict[int, int] = {}
    for position, run in enumerate(runs):
        values = execution_inputs(graph, graph.op(run.op), run.repeated)
        read = (graph.values[value].storage for value in values)
        for storage in (*run.form.inputs, *run.form.outputs, *owners.intersection(read)):
            last_use[storage] = position
    return last_use
