"""What placing parameters has to know of a schedule that has all of them on the device."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate

import numpy as np
import numpy.typing as npt

from tightfit.schemas.actions import Compute, PassGradient, RestoreRandomState, Wait
from tightfit.schemas.costs import Costs
from tightfit.schemas.graph.ownership import partial_gradients_by_owner
from tightfit.schemas.graph.planning_graph import PlanningGraph
from tightfit.schemas.graph.training_graph import NO_VALUE, Graph
from tightfit.schemas.link import HostLink
from tightfit.schemas.schedule import ScheduleStep
from tightfit.stages.combine.activation_offload.placement import offloadable_values
from tightfit.stages.combine.activation_offload.search import PRICE_EFFORT, TransferSearch
from tightfit.stages.combine.bounds.cuts import MultiBudgetCutBoundSolver
from tightfit.stages.combine.bounds.lower_bounds import peak_lower_bound
from tightfit.stages.combine.local_search.search import AnnealedSequence, LocalSearch
from tightfit.stages.combine.lowering.blocks import run_actions
from tightfit.stages.combine.lowering.schedule import ScheduleLowering
from tightfit.stages.combine.milp import SolverLimits
from tightfit.stages.combine.optimizer_offload.min_memory import problem_with_parameters
from tightfit.stages.combine.optimizer_offload.problem import OffloadProblem
from tightfit.stages.combine.optimizer_offload.search_space import (
    ActivationProblemKey,
    OffloadChoice,
)
from tightfit.stages.simulate.effects import schedule_effects
from tightfit.stages.simulate.simulate import simulate
from tightfit.util.processes import usable_cores
from tightfit.util.solver_engines import SolverEngine

BytesByStep = npt.NDArray[np.int64]


@dataclass(frozen=True)
class ActivationSchedule:
    """A schedule with, by step, its seconds in the compute stream, the most bytes ahead of it and
    within it, and the parameters that it reads, as storages. The bytes are without gradients of
    parameters that were whole before; the last of them are those after the step. `touches` are the
    steps that read each parameter, `wholes` the steps at which the gradient of each (a value) is
    whole, in order. `sees` and `views` are parameters and views of them (values): what each step
    reads of these, and what it makes.
    """

    graph: Graph
    steps: list[ScheduleStep]
    seconds: list[float]
    peak: BytesByStep
    reads: list[tuple[int, ...]]
    reading_steps: dict[int, list[int]]
    gradient_steps: dict[int, int]
    value_reads: list[tuple[int, ...]]
    views: list[tuple[int, ...]]
    rest: list[float]
    restoring: float

    def __len__(self) -> int:
        return len(self.steps)


def simulate_activation_schedule(
    graph: Graph,
    costs: Costs,
    steps: Sequence[ScheduleStep],
    remote: Mapping[int, int],
    link: HostLink | None,
) -> ActivationSchedule:
    """The base of a schedule; `remote` are the parameters that live in the offload target, by
    storage. Raises ScheduleError where the simulator refuses the schedule."""
    played = simulate(graph, costs, steps, link=link)
    own = played.steps[0].memory
    storage = [value.storage for value in graph.values]
    parts = partial_gradients_by_owner(graph)
    owners = {found[0]: owner for owner, found in parts.items()}
    peak = np.zeros(len(steps) + 1, np.int64)
    seconds, reads, least = [], [], []
    sees, views = [], []
    view_ops, restoring = graph.view_ops(), 0.0
    touches: dict[int, list[int]] = {}
    wholes: dict[int, int] = {}
    gone = live = 0
    for position, effect in enumerate(schedule_effects(graph, steps)):
        step = played.steps[position]
        peak[position] = live - gone
        if step.memory == own:
            peak[position] = max(step.peak, live) - gone
            live = step.live
        read = [value for value in effect.reads if value != NO_VALUE and storage[value] in remote]
        sees.append(tuple(read))
        views.append(tuple([value for value in effect.makes if storage[value] in remote]))
        own_reads = tuple(dict.fromkeys(storage[value] for value in read)) if effect.runs else ()
        for parameter in own_reads:
            touches.setdefault(parameter, []).append(position)
        reads.append(own_reads)
        if isinstance(step.action, PassGradient) and step.action.value in owners:
            owner = owners[step.action.value]
            if graph.values[owner].kind == "parameter":
                wholes[owner] = position
                gone += graph.storages[storage[step.action.value]]
        computes = step.stream.endswith("/compute") and not isinstance(step.action, Wait)
        own_seconds = step.end - step.start if computes else 0.0
        seconds.append(own_seconds)
        is_view = effect.op is not None and effect.op.id in view_ops
        least.append(0.0 if is_view else own_seconds)
        restoring += own_seconds if isinstance(step.action, RestoreRandomState) else 0.0
    peak[len(steps)] = live - gone
    rest = [*accumulate(reversed(least), initial=0.0)][::-1]
    return ActivationSchedule(
        graph, list(steps), seconds, peak, reads, touches, wholes, sees, views, rest, restoring
    )


def defer_random_restores(steps: Sequence[ScheduleStep]) -> list[ScheduleStep]:
    """The steps, each random state restored right ahead of the op that draws from it: what moves
    beside the two goes before both."""
    found: list[ScheduleStep] = []
    restored: dict[int, ScheduleStep] = {}
    for step in steps:
        if isinstance(step.action, RestoreRandomState):
            restored[step.action.op] = step
            continue
        if isinstance(step.action, Compute) and step.action.op in restored:
            found.append(restored.pop(step.action.op))
        found.append(step)
    return found


BACKWARD_SEGMENTS = 1024
"""Gradients are handed over in about so many parts: each can leave as soon as it is whole."""


@dataclass(frozen=True)
class ActivationProblem:
    """How activations are planned: the problem, its local search, and what opens them.
    `always` are the bytes of the room that they do not share; the `engine` solves the programs of
    drafts. What was found for budgets is here: the `sequences`, and the `bases`, also by the part
    of the link that they take."""

    problem: PlanningGraph
    local_search: LocalSearch
    opener: ScheduleLowering
    always: int
    engine: SolverEngine
    sequences: dict[int, AnnealedSequence] = field(default_factory=dict)
    schedules: dict[tuple[int, float], ActivationSchedule | None] = field(default_factory=dict)

    @classmethod
    def of(cls, task: OffloadProblem, key: ActivationProblemKey) -> ActivationProblem:
        """Activations by themselves, or close together with what ops read and updates take, which
        the device does or not."""
        close, here = key
        problem = problem_with_parameters(task, here) if close else task.loose
        opened = replace(problem, storages=task.problem.storages) if close else task.problem
        updates = task.played(frozenset(), here=here, away=not here)
        always = updates.staging + updates.workspace_bytes + task.scalar_state_bytes if close else 0
        opener = ScheduleLowering(task.graph, opened, BACKWARD_SEGMENTS)
        return cls(problem, LocalSearch(problem), opener, always, task.engine)

    def drafts(self, budget: int) -> list[list[int]]:
        """Sequences that integer programs say to start from for a budget."""
        return self.moments.drafts(budget)

    @cached_property
    def moments(self) -> MultiBudgetCutBoundSolver:
        """The integer programs of the problem."""
        return MultiBudgetCutBoundSolver(self.problem, SolverLimits(engine=self.engine))

    @cached_property
    def sweep(self) -> list[AnnealedSequence]:
        """Sequences for budgets from the least that one is known for up to that of keeping all;
        they do not depend on how many threads search."""
        return self.local_search.sweep(
            [], peak_lower_bound(self.problem), usable_cores(), drafts=self.drafts
        )

    @cached_property
    def needed(self) -> int:
        """Bytes of the room that no sequence goes below."""
        return self.always + peak_lower_bound(self.problem)

    @property
    def least(self) -> AnnealedSequence:
        """The sequence of the least peak."""
        return min(self.sweep, key=lambda each: (each.peak, each.seconds))


ActivationScheduleKey = tuple[ActivationProblemKey, int, float]
"""How activations are planned, their bytes, and the part of the link that they take."""


class ActivationScheduleCache:
    """Those of a task; the `views` hold what was found before, also for other tasks."""

    def __init__(
        self, task: OffloadProblem, views: dict[ActivationProblemKey, ActivationProblem]
    ) -> None:
        self.task = task
        self.views = views
        values = task.graph.values
        parts = {values[gradient.gradient].storage for gradient in task.graph.gradients}
        every = offloadable_values(task.graph, task.loose)
        self.leaving = {storage: every[storage] for storage in every if storage not in parts}

    @contextmanager
    def making(self, choices: Iterable[OffloadChoice]) -> Iterator[Callable[[OffloadChoice], None]]:
        """Threads, on which nothing depends, make those of some choices meanwhile: first sequences,
        one for each number of bytes, then what these send. What is given waits for that of one."""
        missing = {self.key(choice): choice for choice in choices if not self._is_known(choice)}
        if len(missing) < 2:
            yield lambda choice: None
            return
        with ThreadPoolExecutor(usable_cores()) as pool:
            sizes = {(view, budget): choice for (view, budget, _), choice in missing.items()}
            sequences = {
                key: pool.submit(self.annealed_sequence, choice.view, choice.activations)
                for key, choice in sizes.items()
            }

            def make(choice: OffloadChoice) -> None:
                sequences[self.key(choice)[:2]].result()
                self.base(choice)

            begun = {key: pool.submit(make, choice) for key, choice in missing.items()}

            def wait(choice: OffloadChoice) -> None:
                if self.key(choice) in begun:
                    begun[self.key(choice)].result()

            try:
                yield wait
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise

    def key(self, choice: OffloadChoice) -> ActivationScheduleKey:
        """What the base of a choice is made by."""
        return choice.view, self.budget(choice.view, choice.activations), choice.linked

    def _is_known(self, choice: OffloadChoice) -> bool:
        return self.key(choice)[1:] in self.view(choice.view).schedules

    def base(self, choice: OffloadChoice) -> ActivationSchedule | None:
        """What the plan of a choice starts from, None where its activations do not fit."""
        bases, key = self.view(choice.view).schedules, self.key(choice)[1:]
        if key not in bases:
            steps = self._opened(choice)
            task = self.task
            bases[key] = (
                None
                if steps is None
                else simulate_activation_schedule(
                    task.graph, task.costs, steps, task.remote, task.link
                )
            )
        return bases[key]

    def _opened(self, choice: OffloadChoice) -> list[ScheduleStep] | None:
        """The schedule of the activations alone; gradients do not stay in what it may take."""
        annealed = self.annealed_sequence(choice.view, choice.activations)
        fits = annealed.peak <= annealed.ceiling
        if choice.linked and (fits or choice.close):
            link = replace(self.task.link, bandwidth=choice.linked * self.task.link.bandwidth)
            return self._linked(annealed, choice.view, link)
        if not fits:
            return None
        nodes = self.task.problem.nodes
        ops = [nodes[position].op for position in annealed.sequence]
        opener = self.view(choice.view).opener
        return opener.of_actions(run_actions(self.task.problem, ops), True, annealed.ceiling)

    def _linked(
        self, annealed: AnnealedSequence, key: ActivationProblemKey, link: HostLink
    ) -> list[ScheduleStep] | None:
        problem, engine = self.view(key).problem, self.task.engine
        linker = TransferSearch(problem, link, self.leaving, engine=engine)
        found = linker.plan(annealed.ceiling, [annealed.sequence], PRICE_EFFORT)
        if found is None or not found.stays:
            return None
        return self.view(key).opener.of_actions(linker.placer.actions(found), True, found.ceiling)

    def view(self, key: ActivationProblemKey) -> ActivationProblem:
        """See `ActivationProblem`; made when it is first asked for."""
        if key not in self.views:
            self.views[key] = ActivationProblem.of(self.task, key)
        return self.views[key]

    def budget(self, key: ActivationProblemKey, activations: float) -> int:
        """The bytes of a part of the room."""
        return int(activations * (self.task.room - self.view(key).always))

    def annealed_sequence(self, key: ActivationProblemKey, activations: float) -> AnnealedSequence:
        """The sequence of a part of the room, or the least that is known above it."""
        view, close, budget = self.view(key), key[0], self.budget(key, activations)
        if budget not in view.sequences:
            local_search = view.local_search
            starts = [local_search.keep_all]
            if local_search.measure(local_search.keep_all)[0] > budget:
                starts = [*view.drafts(budget), *starts]
                fitting = [each for each in view.sweep if each.peak <= budget] if close else []
                fastest = min(fitting, key=lambda each: each.seconds, default=None)
                starts = starts if fastest is None else [fastest.sequence, *starts]
            view.sequences[budget] = local_search.refine(starts, budget)
        return view.sequences[budget]
