"""What ops and updates need of the device at their moment, where hardly anything else is there."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tightfit.schemas.graph.ownership import partial_gradients_by_owner
from tightfit.schemas.graph.planning_graph import PlanningGraph, PlanningNode
from tightfit.schemas.graph.training_graph import Graph
from tightfit.util.errors import ConfigError

if TYPE_CHECKING:
    from tightfit.stages.combine.optimizer_offload.problem import OffloadProblem


@dataclass(frozen=True)
class MemoryNeed:
    """Bytes of the device that `what` takes at its moment, beside what is there all the time."""

    bytes: int
    description: str


class BudgetTooSmallError(ConfigError):
    """No plan fits in a budget: it is below what one op or one update needs, or below the
    `smallest` that a plan is known for."""

    def __init__(self, message: str, smallest: int | None = None) -> None:
        super().__init__(message)
        self.smallest = smallest


class UnknownPlanError(ConfigError):
    """No plan was found within a budget. `short` says so without the bytes of the closest one that
    was looked at, for a message that names the smallest budget known to work."""

    def __init__(self, message: str, short: str = "") -> None:
        super().__init__(message)
        self.short = short or message


class OffloadTargetTooSmallError(ConfigError):
    """An offload target has no room for what is in it, or for what moves besides. It
    `lacks_second_tier` if optimizer states could be in another memory behind it."""

    def __init__(self, message: str, lacks_second_tier: bool = False) -> None:
        super().__init__(message)
        self.lacks_second_tier = lacks_second_tier

    def with_remedy(self, room: str, second_tier: str) -> str:
        """The message with what to change: the setting of the target's `room`, or that of a second
        offload tier."""
        behind = f", or name a second one for states by {second_tier}"
        return f"{self}: give it more by {room}{behind if self.lacks_second_tier else ''}"


def check_min_memory(task: OffloadProblem) -> None:
    """Raises BudgetTooSmallError, with its name, where the budget is below what one op or one
    update needs."""
    most = max(memory_needs(task), key=lambda need: need.bytes)
    always = task.fixed + task.min_staging_bytes
    if most.bytes + always > task.budget:
        raise BudgetTooSmallError(
            f"no plan fits in {task.budget:,} bytes: {most.description} needs "
            f"{most.bytes + always:,} "
            "with what it reads and what is there all the time"
        )


def memory_needs(task: OffloadProblem) -> Iterator[MemoryNeed]:
    """What each op takes at least while it runs, with the parameters that it reads, and what each
    update takes that has to be the device's, with its parameter and its gradient."""
    problem = _problem_with_partial_gradients(task)
    for node in problem.nodes:
        inputs = sum(problem.storages[storage].bytes for storage in set(node.inputs))
        reads = node.least_peak + _parameter_bytes_read(task, node)
        yield MemoryNeed(inputs + reads, describe_op(task.graph, node))
    sizes = task.graph.storages
    for owner, parts in partial_gradients_by_owner(task.graph).items():
        if owner in task.device_updated_parameters(most=False):
            gradient = sizes[task.graph.values[parts[0]].storage] * (not task.accumulating)
            yield MemoryNeed(
                gradient + _update_bytes(task, owner),
                f"the update of {_parameter_path(task, owner)}",
            )


def describe_op(graph: Graph, node: PlanningNode) -> str:
    """An op with its module, for people."""
    op = graph.ops[node.op]
    return op.target + (f" of {op.module}" if op.module else "")


def problem_with_parameters(task: OffloadProblem, here: bool) -> PlanningGraph:
    """The step as planning sees it where parameters are on the device for no longer than they are
    used: each op has those that it reads as temporaries, and the one that makes a gradient whole
    what its update on the device takes, where that is the device's: `here` all whose may be. A
    gradient that arrives in parts waits for the last."""
    problem = _problem_with_partial_gradients(task)
    nodes = [_add_node_bytes(node, _parameter_bytes_read(task, node), 0) for node in problem.nodes]
    last = {storage: max(readers) for storage, readers in enumerate(problem.readers) if readers}
    for owner, parts in partial_gradients_by_owner(task.graph).items():
        makers = [problem.storages[task.graph.values[part].storage].producer for part in parts]
        if owner not in task.device_updated_parameters(here) or max(makers) < 0:
            continue
        node = nodes[max(makers)]
        ending = sum(problem.storages[s].bytes for s in node.inputs if last[s] <= max(makers))
        made = sum(problem.storages[storage].bytes for storage in node.outputs)
        nodes[max(makers)] = _add_node_bytes(node, 0, made - ending + _update_bytes(task, owner))
    return replace(problem, nodes=nodes)


def _problem_with_partial_gradients(task: OffloadProblem) -> PlanningGraph:
    """The step where gradients of parameters do not stay, but for parts of one, which are there
    until the last is made."""
    problem = task.loose
    nodes = list(problem.nodes)
    for parts in partial_gradients_by_owner(task.graph).values():
        first, *further = (task.graph.values[part].storage for part in parts)
        for storage in further:
            maker = problem.storages[storage].producer
            if maker > problem.storages[first].producer and first not in nodes[maker].inputs:
                nodes[maker] = replace(nodes[maker], inputs=[*nodes[maker].inputs, first])
    return replace(problem, nodes=nodes)


def _add_node_bytes(node: PlanningNode, more: int, least: int) -> PlanningNode:
    """A node whose runs take some bytes more, and the first one at least some."""
    reuses = [replace(each, peak=max(each.peak + more, least)) for each in node.reuses]
    repeat = node.repeat and replace(node.repeat, peak=node.repeat.peak + more)
    return replace(node, peak=max(node.peak + more, least), reuses=reuses, repeat=repeat)


def _parameter_bytes_read(task: OffloadProblem, node: PlanningNode) -> int:
    """The bytes of the parameters that an op reads and that live in the offload target."""
    graph = task.graph
    reads = {graph.values[value].storage for value in graph.ops[node.op].inputs}
    return sum(graph.storages[storage] for storage in reads if storage in task.remote)


def _update_bytes(task: OffloadProblem, owner: int) -> int:
    """What an update takes beside its gradient, with the parameter where that comes for it."""
    storage = task.graph.values[owner].storage
    own = task.graph.storages[storage] if storage in task.remote else 0
    return own + task.update_peak(owner)


def _parameter_path(task: OffloadProblem, owner: int) -> str:
    return task.graph.values[owner].path
