"""Runs of clusters that form a sequence, by Rockmate's dynamic program (Z 3.2.2, RK-ROTOR)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tightfit.schemas.sequence import NO_OPTION, ChainOperation
from tightfit.stages.combine.chain.frontier import ChainFrontier, spread_indices
from tightfit.stages.combine.chain.options import ChainProblem, PositionOptions
from tightfit.stages.combine.chain.options import PositionOption as ChainWay
from tightfit.stages.combine.checkmate.milp import TaskRun, option_numbered
from tightfit.stages.combine.checkmate.tasks import NOTHING_KEPT, StepTask, TaskGraph, TaskOption
from tightfit.stages.simulate.unroll import UnrolledStage


def plan_cluster_chain(
    tasks: TaskGraph, stages: Sequence[UnrolledStage], count: int
) -> Iterator[list[TaskRun]]:
    """At most so many runs of the tasks of clusters in stages, by falling peak; none where the
    clusters are no sequence."""
    ways = build_cluster_chain(tasks)
    if ways is None:
        return
    plans = ChainFrontier(ways).plans()
    for place in spread_indices(len(plans), count):
        yield _RunWriter(tasks, stages).chosen(plans[place].sequence)


def build_cluster_chain(tasks: TaskGraph) -> ChainProblem | None:
    """Tasks as a chain, a position for each before the loss; None where a task reads of others than
    of its neighbors what can be dropped. What stays is on no account."""
    backward = _backward_tasks(tasks)
    if not _is_sequence(tasks, backward):
        return None
    passed = [0] * len(tasks.tasks)
    staying = [0] * len(tasks.tasks)
    for value in tasks.values:
        if value.maker >= 0:
            (staying if value.stays else passed)[value.maker] += value.bytes
    positions, first = [], 0.0
    for k in range(tasks.loss):
        late = backward.get(k)
        after = tasks.loss if k == tasks.loss - 1 else backward.get(k + 1)
        delta = 0 if after is None else passed[after]
        gradient = 0 if late is None else staying[late]
        task, own = tasks.tasks[k], None if late is None else tasks.tasks[late]
        positions.append(_position(tasks, k, task, own, (passed[k], delta, gradient)))
        first += task.first[0].seconds - _recompute_option(task, NOTHING_KEPT).seconds
    loss = tasks.tasks[tasks.loss].first[0]
    way = ChainWay(NO_OPTION, 0, 0, _peak(loss), 0.0, loss.seconds)
    return ChainProblem([*positions, PositionOptions(0, 0, 0, 0.0, 0, [way])], 0, first)


def _backward_tasks(tasks: TaskGraph) -> dict[int, int]:
    """By the forward of a cluster its backward."""
    return {task.forward: k for k, task in enumerate(tasks.tasks) if task.forward >= 0}


def _is_sequence(tasks: TaskGraph, backward: dict[int, int]) -> bool:
    """Whether what can be dropped passes between neighbors alone, forward and backward."""
    turned = {late: k for k, late in backward.items()}
    if len(tasks.tasks) > tasks.loss + 1 + len(turned):
        return False
    for number, task in enumerate(tasks.tasks):
        own = turned.get(number, number)
        near = {own - 1, own} if number in turned else {own - 1}
        if number in turned:
            near.add(tasks.loss if own == tasks.loss - 1 else backward.get(own + 1, own))
        for value in {v for way in (*task.first, *task.further) for v in way.reads}:
            kind = tasks.values[value]
            droppable = kind.maker >= 0 and kind.bytes and not kind.stays
            if droppable and kind.maker not in near:
                return False
    return True


def _position(
    tasks: TaskGraph, k: int, task: StepTask, backward: StepTask | None, sizes: tuple[int, int, int]
) -> PositionOptions:
    """A forward with its backward as a position; `sizes` are its output, the gradient of that, and
    the gradients that its backward leaves."""
    output, delta, gradient = sizes
    nothing = _recompute_option(task, NOTHING_KEPT)
    ways = []
    for late in () if backward is None else backward.first:
        first, again = (
            option_numbered(task.first, late.option),
            _recompute_option(task, late.option),
        )
        taken = again.seconds
        if k == tasks.loss - 1:  # which runs once, as the loss follows
            taken = first.seconds - task.first[0].seconds + nothing.seconds
        at_once = again.seconds - _immediate_option(task, late.option).seconds
        ways.append(
            ChainWay(
                option=late.option,
                save=tasks.saved.get((k, late.option), 0) + output,
                forward_peak=max(_peak(first), _peak(again), output),
                backward_peak=_peak(late) + output + delta,
                forward_seconds=taken,
                backward_seconds=late.seconds,
                output_seconds=min(max(at_once, 0.0), taken),
            )
        )
    peak = max(_peak(task.first[0]), _peak(nothing), output)
    if not ways:
        ways.append(ChainWay(NOTHING_KEPT, output, peak, output + delta, nothing.seconds, 0.0))
    return PositionOptions(output, delta, gradient, nothing.seconds, peak, ways)


class _RunWriter:
    """Lists the runs of a sequence; `kept` is the option that a position's next backward is of."""

    def __init__(self, tasks: TaskGraph, stages: Sequence[UnrolledStage]) -> None:
        self.tasks = tasks
        self.stage_of = {k: t for t, stage in enumerate(stages) for k in stage.tail}
        self.backward = _backward_tasks(tasks)
        self.kept: dict[int, int] = {}
        self.ran: set[int] = set()

    def chosen(self, sequence: Sequence[ChainOperation]) -> list[TaskRun]:
        """The runs: each forward is in the stage of the backward, or of the loss, that follows."""
        found: list[TaskRun] = []
        pending: list[tuple[int, int]] = []
        for action in sequence:
            k = action.block - 1
            if action.action in ("F", "F_ck", "F_none"):
                keeps = action.option if action.action == "F" else NOTHING_KEPT
                pending.append((k, keeps))
                if action.action == "F":
                    self.kept[k] = keeps
                continue
            ends = self.tasks.loss if action.action == "loss" else self.backward.get(k)
            if ends is None:
                continue
            stage = self.stage_of[ends]
            found += [run for each, keeps in pending for run in self._forward(stage, each, keeps)]
            pending = []
            option = NOTHING_KEPT if action.action == "loss" else self.kept.pop(k)
            found.append((stage, ends, option_numbered(self.tasks.tasks[ends].first, option)))
        return found

    def _forward(self, stage: int, k: int, option: int) -> Iterator[TaskRun]:
        task = self.tasks.tasks[k]
        if k not in self.ran:
            self.ran.add(k)
            yield self.stage_of[k], k, option_numbered(task.first, option)
        elif task.further:
            late = k in self.backward and self.stage_of[self.backward[k]] == stage
            yield stage, k, (_immediate_option if late else _recompute_option)(task, option)


def _peak(way: TaskOption) -> int:
    return max((level.own for level in way.levels), default=0)


def _recompute_option(task: StepTask, option: int) -> TaskOption:
    """A further run by an option, an empty one where there are none."""
    return option_numbered(task.further, option) if task.further else _EMPTY


def _immediate_option(task: StepTask, option: int) -> TaskOption:
    """A further run that its backward follows at once."""
    return option_numbered(task.late, option) if task.late else _recompute_option(task, option)


_EMPTY = TaskOption(NOTHING_KEPT, 0.0, frozenset(), frozenset(), (), ())
