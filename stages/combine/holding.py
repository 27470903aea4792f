"""What holds the memory of a step when it takes the most, by name."""

from __future__ import annotations

from schemas.graph import NONE, Graph
from schemas.plan import Fixed
from stages.replay.referee import Replay


def holding(graph: Graph, played: Replay, fixed: Fixed) -> str:
    """The parts of a step's total at its peak, the largest first, as a clause."""
    step = played.steps[played.peak_step]
    live = _live_before(graph, played)
    storage = [value.storage for value in graph.values]
    gradients = {storage[made.gradient] for made in graph.gradients} & live
    outputs = {storage[made.value] for made in graph.outputs if made.value != NONE} & live
    outputs -= gradients
    before = played.steps[played.peak_step - 1].live if played.peak_step else 0
    op = "the loss"
    own = step.peak - before
    if step.op != NONE and step.action != "loss":
        run = graph.ops[step.op]
        read = {storage[value] for value in run.inputs} & live
        own += _size(graph, read - gradients - outputs)
        place = f" of {run.module}" if run.module else ""
        op = f"{run.target.split('.')[1]}{place} (at {run.source})"
    sizes = {"gradients": _size(graph, gradients), "outputs": _size(graph, outputs), op: own}
    kept = step.peak - sum(sizes.values())
    sizes |= {"what else is kept": kept, _parameters(graph): fixed.parameters}
    sizes |= {"inputs": fixed.inputs, "buffers": fixed.buffers}
    ranked = sorted(sizes.items(), key=lambda item: -item[1])
    return ", ".join(f"{name} {size:,}" for name, size in ranked if size > 0)


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


def _live_before(graph: Graph, played: Replay) -> set[int]:
    """The storages that the step has made and not freed when its peak begins."""
    live: set[int] = set()
    for step in played.steps[: played.peak_step]:
        if step.action == "free" and step.value != NONE:
            live.discard(graph.values[step.value].storage)
        if step.action in ("compute", "loss"):
            if step.in_place != NONE:
                live.discard(graph.values[step.in_place].storage)
            made = graph.ops[step.op].outputs
            live.update(graph.values[value].storage for value in made if value != NONE)
    return live - graph.fixed_storages()


def _size(graph: Graph, storages: set[int]) -> int:
    return sum(graph.storages[storage] for storage in storages)
