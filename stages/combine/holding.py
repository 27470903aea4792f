"""What holds the memory of a step when it takes the most, by name."""

from __future__ import annotations

from tightfit.schemas.actions import Loss, Optimise
from tightfit.schemas.graph import NONE, Graph, Op
from tightfit.schemas.plan import Fixed
from tightfit.schemas.problem import Problem
from tightfit.stages.replay.referee import Replay
from tightfit.stages.replay.walk import effects, there_after


def holding(graph: Graph, played: Replay, fixed: Fixed) -> str:
    """The parts of a step's total at its peak, the largest first, as a clause."""
    walked = list(effects(graph, played.steps[: played.peak_step + 1]))
    live = set(there_after(graph, walked[:-1]))
    last = walked[-1]
    step = last.step
    storage = [value.storage for value in graph.values]
    gradients = {storage[made.gradient] for made in graph.gradients} & live
    outputs = {storage[value] for value in graph.output_values()} & live
    outputs -= gradients
    earlier = (
        s.live for s in reversed(played.steps[: played.peak_step]) if s.memory == step.memory
    )
    before = next(earlier, 0)
    name = "the loss"
    own = step.peak - before
    if last.op is not None and not isinstance(step.action, Loss):
        read = {storage[value] for value in last.reads} & live
        own += _size(graph, read - gradients - outputs)
        name = called(last.op)
    sizes = {"gradients": _size(graph, gradients), "outputs": _size(graph, outputs), name: own}
    kept = step.peak - sum(sizes.values())
    sizes |= {"what else is kept": kept, _parameters(graph): fixed.parameters}
    sizes |= {"inputs": fixed.inputs, "buffers": fixed.buffers}
    ranked = sorted(sizes.items(), key=lambda item: -item[1])
    return ", ".join(f"{name} {size:,}" for name, size in ranked if size > 0)


def holding_whole(
    graph: Graph, played: Replay, fixed: Fixed, total: int, staging: int, sums: int
) -> str:
    """The parts of the total of a step with its updates, the largest first, as a clause: what is
    there before it, the buffers that states pass through, the `sums` of gradients of several
    microbatches, and the rest, with what runs where that is the most."""
    walked = list(effects(graph, played.steps[: played.peak_step + 1]))
    action, op = played.steps[played.peak_step].action, walked[-1].op
    name = "the loss" if op is None else called(op)
    if isinstance(action, Optimise):
        name = f"the update of {graph.values[action.value].path}"
    sizes = {_parameters(graph): fixed.parameters, "inputs": fixed.inputs, "buffers": fixed.buffers}
    sizes |= {"buffers that states pass through": staging, "gradients that add up": sums}
    sizes[f"{name} with what is kept then"] = total - sum(sizes.values())
    ranked = sorted(sizes.items(), key=lambda item: -item[1])
    return ", ".join(f"{part} {size:,}" for part, size in ranked if size > 0)


def called(op: Op) -> str:
    """An op by its operator, its submodule and its line."""
    place = f" of {op.module}" if op.module else ""
    line = f" (at {op.source})" if op.source else ""
    return f"{op.target.split('.')[1]}{place}{line}"


def needing(graph: Graph, problem: Problem, position: int) -> str:
    """What the node at a position asks for, or the end of the step where that is NONE, as a
    clause."""
    if position == NONE:
        return "which are there when the step ends"
    name = "the loss"
    if position != problem.loss:
        name = called(graph.ops[problem.nodes[position].op])
    return f"which {name} takes with what it reads"


def _parameters(graph: Graph) -> str:
    """The parameters, with the name of the largest."""
    sizes = {
        value.path: graph.storages[value.storage]
        for value in graph.values
        if value.kind == "parameter"
    }
    if len(sizes) < 2:
        return "parameters"
    largest = max(sizes, key=lambda path: sizes[path])
    return f"parameters (the largest {largest} {sizes[largest]:,})"


def _size(graph: Graph, storages: set[int]) -> int:
    return sum(graph.storages[storage] for storage in storages)
