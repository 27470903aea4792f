"""What ops and updates need of the device at their moment, where hardly anything else is there."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tightfit.schemas.contributions import contributions
from tightfit.schemas.errors import ConfigError
from tightfit.schemas.graph import Graph
from tightfit.schemas.problem import Node, Problem

if TYPE_CHECKING:
    from tightfit.stages.combine.whole.task import Task


@dataclass(frozen=True)
class Need:
    """Bytes of the device that `what` takes at its moment, beside what is there all the time."""

    bytes: int
    what: str


class TooSmallError(ConfigError):
    """A budget is below what one op or one update needs: no plan fits."""


def check_needs(task: Task) -> None:
    """Raises TooSmallError where the budget is below what one op or one update needs, with its
    name."""
    most = max(needs(task), key=lambda need: need.bytes)
    always = task.fixed + task.always_staged
    if most.bytes + always > task.budget:
        raise TooSmallError(
            f"no plan fits in {task.budget:,} bytes: {most.what} needs {most.bytes + always:,} "
            "with what it reads and what is there all the time"
        )


def needs(task: Task) -> Iterator[Need]:
    """What each op takes at least while it runs, with the parameters that it reads, and what each
    update takes that has to be the device's, with its parameter and its gradient."""
    problem = _with_parts(task)
    for node in problem.nodes:
        inputs = sum(problem.storages[storage].bytes for storage in set(node.inputs))
        reads = node.least_peak + _reads(task, node)
        yield Need(inputs + reads, name_of(task.graph, node))
    sizes = task.graph.storages
    for owner, parts in contributions(task.graph).items():
        if owner in task.updated_here(most=False):
            gradient = sizes[task.graph.values[parts[0]].storage] * (not task.accumulating)
            yield Need(gradient + _update(task, owner), f"the update of {_path(task, owner)}")


def name_of(graph: Graph, node: Node) -> str:
    """An op with its module, for people."""
    op = graph.ops[node.op]
    return op.target + (f" of {op.module}" if op.module else "")


def close_problem(task: Task, here: bool) -> Problem:
    """The step as planning sees it where parameters are on the device for no longer than they are
    used: each op has those that it reads as temporaries, and the one that makes a gradient whole
    what its update on the device takes, where that is the device's: `here` all whose may be. A
    gradient that arrives in parts waits for the last."""
    problem = _with_parts(task)
    nodes = [_wider(node, _reads(task, node), 0) for node in problem.nodes]
    last = {storage: max(readers) for storage, readers in enumerate(problem.readers) if readers}
    for owner, parts in contributions(task.graph).items():
        makers = [problem.storages[task.graph.values[part].storage].producer for part in parts]
        if owner not in task.updated_here(here) or max(makers) < 0:
            continue
        node = nodes[max(makers)]
        ending = sum(problem.storages[s].bytes for s in node.inputs if last[s] <= max(makers))
        made = sum(problem.storages[storage].bytes for storage in node.outputs)
        nodes[max(makers)] = _wider(node, 0, made - ending + _update(task, owner))
    return replace(problem, nodes=nodes)


def _with_parts(task: Task) -> Problem:
    """The step where gradients of parameters do not stay, but for parts of one, which are there
    until the last is made."""
    problem = task.loose
    nodes = list(problem.nodes)
    for parts in contributions(task.graph).values():
        first, *further = (task.graph.values[part].storage for part in parts)
        for storage in further:
            maker = problem.storages[storage].producer
            if maker > problem.storages[first].producer and first not in nodes[maker].inputs:
                nodes[maker] = replace(nodes[maker], inputs=[*nodes[maker].inputs, first])
    return replace(problem, nodes=nodes)


def _wider(node: Node, more: int, least: int) -> Node:
    """A node whose runs take some bytes more, and the first one at least some."""
    reuses = [replace(each, peak=max(each.peak + more, least)) for each in node.reuses]
    repeat = node.repeat and replace(node.repeat, peak=node.repeat.peak + more)
    return replace(node, peak=max(node.peak + more, least), reuses=reuses, repeat=repeat)


def _reads(task: Task, node: Node) -> int:
    """The bytes of the parameters that an op reads and that live in the other memory."""
    graph = task.graph
    reads = {graph.values[value].storage for value in graph.ops[node.op].inputs}
    return sum(graph.storages[storage] for storage in reads if storage in task.remote)


def _update(task: Task, owner: int) -> int:
    """What an update takes beside its gradient, with the parameter where that comes for it."""
    storage = task.graph.values[owner].storage
    own = task.graph.storages[storage] if storage in task.remote else 0
    return own + task.update_peak(owner)


def _path(task: Task, owner: int) -> str:
    return task.graph.values[owner].path
