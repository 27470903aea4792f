"""Runs of tasks that are known before a program is solved, for it to start from."""

from __future__ import annotations

from collections.abc import Sequence

from tightfit.stages.combine.unrolled.program import Chosen
from tightfit.stages.combine.unrolled.tasks import NOTHING_KEPT, Tasks, Way, makers_of
from tightfit.stages.replay.unrolling import ProgramStage


def all_kept(tasks: Tasks, stages: Sequence[ProgramStage]) -> list[Chosen]:
    """Every task once; a cluster by its first option."""
    return [
        (t, k, _by(tasks.tasks[k].first, 1)) for t, stage in enumerate(stages) for k in stage.tail
    ]


def all_again(tasks: Tasks, stages: Sequence[ProgramStage]) -> list[Chosen]:
    """Whatever can is made again right before it is needed: every cluster by its first option, for
    its backward; of single nodes those that the tail of a stage is made of, in each stage after the
    loss."""
    found: list[Chosen] = []
    backward = {task.forward: k for k, task in enumerate(tasks.tasks) if task.forward >= 0}
    repeatable = {k for k in range(tasks.loss) if tasks.tasks[k].further}
    for t, stage in enumerate(stages):
        late = stage.tail[0] > tasks.loss and not backward
        needed = makers_of(tasks, stage.tail, repeatable) if late else set()
        for k in stage.candidates:
            task = tasks.tasks[k]
            if backward.get(k) in stage.tail and task.late:
                found.append((t, k, _by(task.late, 1)))
            elif k in needed:
                found.append((t, k, task.further[0]))
        for k in stage.tail:
            first = tasks.tasks[k].first
            dropped = k in backward and bool(tasks.tasks[k].further)
            found.append((t, k, _by(first, NOTHING_KEPT if dropped else 1)))
    return found


def seconds_of(chosen: Sequence[Chosen]) -> float:
    """What the program counts as the seconds of runs."""
    return sum(way.seconds for _, _, way in chosen)


def _by(ways: Sequence[Way], option: int) -> Way:
    """The way by an option, the first one where there is none: the option keeps nothing."""
    return next((way for way in ways if way.option == option), ways[0])
