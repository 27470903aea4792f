"""What an unrolled program plans: tasks that run in ways, values that pass between them.

Of a step as it stands each node is a task (`tasks_of_nodes`) with one way to run. The forward and
the backward of a cluster are two tasks (`stages.combine.clusters.ways`); the forward has a way for
each option and one that keeps nothing, the backward one for each option.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tightfit.schemas.graph import NONE
from tightfit.schemas.problem import Node, Problem, Repeat
from tightfit.stages.replay.line import limits
from tightfit.stages.replay.unrolling import ProgramStage, every_stage, stages_after_loss

NOTHING_KEPT = 0
"""The option of a way that keeps nothing for a backward."""


@dataclass(frozen=True)
class Level:
    """Bytes that a way needs itself at some time (`own`: what it makes, and of a backward what was
    kept for it), and which of the values that it reads it has read for the last time (`ended`)."""

    own: int
    ended: frozenset[int]


@dataclass(frozen=True)
class Way:
    """A way to run a task: its option, its time, the values that it reads and makes, its levels and
    the positions of the nodes that it runs."""

    option: int
    seconds: float
    reads: frozenset[int]
    makes: frozenset[int]
    levels: tuple[Level, ...]
    runs: tuple[int, ...]


@dataclass(frozen=True)
class Task:
    """The ways in which a task can run `first`, and `further` times, which are none where it runs
    once; `late` are those in the stage of its backward. `forward` is, of the backward of a cluster,
    the task that is its forward."""

    first: tuple[Way, ...]
    further: tuple[Way, ...] = ()
    late: tuple[Way, ...] = ()
    forward: int = NONE


@dataclass(frozen=True)
class Value:
    """Bytes that the task `maker` makes, NONE where none does. What `stays` is never dropped."""

    bytes: int
    maker: int
    stays: bool


@dataclass(frozen=True)
class Tasks:
    """Tasks in the order in which they run first, with the position of the loss. `saved` are the
    bytes that an option (task, option) keeps from the forward of a cluster to its backward; one
    that keeps none is not in it."""

    tasks: Sequence[Task]
    values: Sequence[Value]
    loss: int
    saved: Mapping[tuple[int, int], int] = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        """What the fastest first ways of all take."""
        return sum(min(way.seconds for way in task.first) for task in self.tasks)


def tasks_of_nodes(problem: Problem) -> Tasks:
    """Each node of a problem as a task."""
    return Tasks(
        [
            Task(
                (_way_of_node(problem, position, node),),
                (_way_of_node(problem, position, node.form(True)),)
                if problem.can_repeat(node)
                else (),
            )
            for position, node in enumerate(problem.nodes)
        ],
        [Value(s.bytes, s.producer, s.stays) for s in problem.storages],
        problem.loss,
    )


def _way_of_node(problem: Problem, position: int, form: Node | Repeat) -> Way:
    reads = {storage for storage in form.inputs if problem.storages[storage].producer >= 0}
    dropped = {storage for storage in reads if not problem.storages[storage].stays}
    levels = (Level(own, ended) for own, ended in limits(problem, form, (), dropped))
    return Way(
        NOTHING_KEPT,
        form.least_seconds,
        frozenset(reads),
        frozenset(form.outputs),
        tuple(levels),
        (position,),
    )


def full_stages(tasks: Tasks) -> list[ProgramStage]:
    """One stage a task, all that can run again before it: as Z 2.1.1 has it."""
    return every_stage([bool(task.further) for task in tasks.tasks])


def forward_stages(tasks: Tasks) -> list[ProgramStage]:
    """All up to the loss in one stage, then one for each task that reads what could have been
    dropped. Only tasks of the forward run again, where this stage or a later one may need them."""
    repeatable = {k for k in range(tasks.loss) if tasks.tasks[k].further}
    remade = {d for k in repeatable for d in _reached(tasks.tasks[k].further, "makes")}

    def begins(k: int) -> bool:
        task = tasks.tasks[k]
        return task.forward >= 0 or not remade.isdisjoint(_reached(task.first, "reads"))

    def needed(wanted: Iterable[int]) -> set[int]:
        return makers_of(tasks, wanted, repeatable)

    return stages_after_loss(len(tasks.tasks), tasks.loss, begins, needed)


def _reached(ways: Iterable[Way], what: str) -> set[int]:
    return {value for way in ways for value in getattr(way, what)}


def makers_of(tasks: Tasks, wanted: Iterable[int], among: set[int]) -> set[int]:
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
