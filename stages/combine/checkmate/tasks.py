"""What an unrolled program plans: tasks that run in ways, values that pass between them.

Of a step as it stands each node is a task (`build_node_tasks`) with one way to run. The forward and
the backward of a cluster are two tasks (`stages.combine.hierarchy.clusters`); the forward has a way
for each option and one that keeps nothing, the backward one for each option."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tightfit.schemas.graph.planning_graph import PlanningGraph, PlanningNode, RecomputeVariant
from tightfit.schemas.graph.training_graph import NO_VALUE
from tightfit.stages.simulate.liveness import memory_limits
from tightfit.stages.simulate.unroll import UnrolledStage, stages_after_loss, stages_per_node

NOTHING_KEPT = 0
"""The option of a way that keeps nothing for a backward."""


@dataclass(frozen=True)
class TaskMemory:
    """Bytes that a way needs itself at some time (`own`: what it makes, and of a backward what was
    kept for it), and which of the values that it reads it has read for the last time (`ended`)."""

    own: int
    ended: frozenset[int]


@dataclass(frozen=True)
class TaskOption:
    """A way to run a task: its option, its time, the values that it reads and makes, its levels and
    the positions of the nodes that it runs."""

    option: int
    seconds: float
    reads: frozenset[int]
    makes: frozenset[int]
    levels: tuple[TaskMemory, ...]
    runs: tuple[int, ...]


@dataclass(frozen=True)
class StepTask:
    """The ways in which a task can run `first`, and `further` times, which are none where it runs
    once; `late` are those in the stage of its backward. `forward` is, of the backward of a cluster,
    the task that is its forward."""

    first: tuple[TaskOption, ...]
    further: tuple[TaskOption, ...] = ()
    late: tuple[TaskOption, ...] = ()
    forward: int = NO_VALUE


@dataclass(frozen=True)
class TaskValue:
    """Bytes that the task `maker` makes, NONE where none does. What `stays` is never dropped."""

    bytes: int
    maker: int
    stays: bool


@dataclass(frozen=True)
class TaskGraph:
    """Tasks in the order in which they run first, with the position of the loss. `saved` are the
    bytes that an option (task, option) keeps from the forward of a cluster to its backward; one
    that keeps none is not in it."""

    tasks: Sequence[StepTask]
    values: Sequence[TaskValue]
    loss: int
    saved: Mapping[tuple[int, int], int] = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        """What the fastest first ways of all take."""
        return sum(min(way.seconds for way in task.first) for task in self.tasks)


def build_node_tasks(problem: PlanningGraph) -> TaskGraph:
    """Each node of a problem as a task."""
    return TaskGraph(
        [
            StepTask(
                (_node_option(problem, position, node),),
                (_node_option(problem, position, node.form(True)),)
                if problem.can_recompute(node)
                else (),
            )
            for position, node in enumerate(problem.nodes)
        ],
        [TaskValue(s.bytes, s.producer, s.stays) for s in problem.storages],
        problem.loss,
    )


def _node_option(
    problem: PlanningGraph, position: int, form: PlanningNode | RecomputeVariant
) -> TaskOption:
    reads = {storage for storage in form.inputs if problem.storages[storage].producer >= 0}
    dropped = {storage for storage in reads if not problem.storages[storage].stays}
    levels = (TaskMemory(own, ended) for own, ended in memory_limits(problem, form, (), dropped))
    return TaskOption(
        NOTHING_KEPT,
        form.least_seconds,
        frozenset(reads),
        frozenset(form.outputs),
        tuple(levels),
        (position,),
    )


def full_stages(tasks: TaskGraph) -> list[UnrolledStage]:
    """One stage a task, all that can run again before it: as Z 2.1.1 has it."""
    return stages_per_node([bool(task.further) for task in tasks.tasks])


def forward_stages(tasks: TaskGraph) -> list[UnrolledStage]:
    """All up to the loss in one stage, then one for each task that reads what could have been
    dropped. Only tasks of the forward run again, where this stage or a later one may need them."""
    repeatable = {k for k in range(tasks.loss) if tasks.tasks[k].further}
    remade = {d for k in repeatable for d in _values_of(tasks.tasks[k].further, "makes")}

    def begins(k: int) -> bool:
        task = tasks.tasks[k]
        return task.forward >= 0 or not remade.isdisjoint(_values_of(task.first, "reads"))

    def needed(wanted: Iterable[int]) -> set[int]:
        return find_makers(tasks, wanted, repeatable)

    return stages_after_loss(len(tasks.tasks), tasks.loss, begins, needed)


def _values_of(ways: Iterable[TaskOption], what: str) -> set[int]:
    return {value for way in ways for value in getattr(way, what)}


def find_makers(tasks: TaskGraph, wanted: Iterable[int], among: set[int]) -> set[int]:
    """The tasks `among` some that the wanted ones may need, directly or not."""
    found: set[int] = set()
    pending = list(wanted)
    while pending:
        task = tasks.tasks[pending.pop()]
        ways = (*task.first, *task.further)
        needed = {tasks.values[value].maker for way in ways for value in way.reads}
        needed |= {task.forward}
        new = (needed & among) - found
        found |= new
        pending += new
    return found
