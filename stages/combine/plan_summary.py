"""What holds the memory of a step when it takes the most, by name."""

from __future__ import annotations

from tightfit.schemas.actions import ComputeLoss, UpdateOnDevice
from tightfit.schemas.costs import PREEMPTION_THRESHOLD, Costs
from tightfit.schemas.graph.planning_graph import PlanningGraph
from tightfit.schemas.graph.training_graph import NO_VALUE, Graph, Op
from tightfit.schemas.link import HostLink
from tightfit.schemas.plan import BaselineBytes
from tightfit.stages.simulate.effects import resident_after, schedule_effects
from tightfit.stages.simulate.simulate import SimulationResult
from tightfit.util.command_line import format_bytes


def describe_peak(graph: Graph, played: SimulationResult, fixed: BaselineBytes) -> str:
    """The parts of a step's total at its peak, the largest first, as a clause."""
    walked = list(schedule_effects(graph, played.steps[: played.peak_step + 1]))
    live = set(resident_after(graph, walked[:-1]))
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
    if last.op is not None and not isinstance(step.action, ComputeLoss):
        read = {storage[value] for value in last.reads} & live
        own += _total_bytes(graph, read - gradients - outputs)
        name = describe_op(last.op)
    sizes = {
        "gradients": _total_bytes(graph, gradients),
        "outputs": _total_bytes(graph, outputs),
        name: own,
    }
    kept = step.peak - sum(sizes.values())
    sizes |= {"what else is kept": kept, _describe_parameters(graph): fixed.parameters}
    sizes |= {"inputs": fixed.inputs, "buffers": fixed.buffers}
    ranked = sorted(sizes.items(), key=lambda item: -item[1])
    return ", ".join(f"{name} {size:,}" for name, size in ranked if size > 0)


def describe_optimizer_step_peak(
    graph: Graph,
    played: SimulationResult,
    fixed: BaselineBytes,
    total: int,
    staging: int,
    sums: int,
) -> str:
    """The parts of the total of a step with its updates, the largest first, as a clause: what is
    there before it, the buffers that states pass through, the `sums` of gradients of several
    microbatches, and the rest, with what runs where that is the most."""
    walked = list(schedule_effects(graph, played.steps[: played.peak_step + 1]))
    action, op = played.steps[played.peak_step].action, walked[-1].op
    name = "the loss" if op is None else describe_op(op)
    if isinstance(action, UpdateOnDevice):
        name = f"the update of {graph.values[action.value].path}"
    sizes = {
        _describe_parameters(graph): fixed.parameters,
        "inputs": fixed.inputs,
        "buffers": fixed.buffers,
    }
    sizes |= {"buffers that states pass through": staging, "gradients that add up": sums}
    sizes[f"{name} with what is kept then"] = total - sum(sizes.values())
    ranked = sorted(sizes.items(), key=lambda item: -item[1])
    return ", ".join(f"{part} {size:,}" for part, size in ranked if size > 0)


def describe_op(op: Op) -> str:
    """An op by its operator, its submodule and its line."""
    place = f" of {op.module}" if op.module else ""
    line = f" (at {op.source})" if op.source else ""
    return f"{op.target.split('.')[1]}{place}{line}"


def describe_peak_bound(graph: Graph, problem: PlanningGraph, position: int) -> str:
    """What the node at a position asks for, or the end of the step where that is NONE, as a
    clause."""
    if position == NO_VALUE:
        return "which are there when the step ends"
    name = "the loss"
    if position != problem.loss:
        name = describe_op(graph.ops[problem.nodes[position].op])
    return f"which {name} takes with what it reads"


def _describe_parameters(graph: Graph) -> str:
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


def _total_bytes(graph: Graph, storages: set[int]) -> int:
    return sum(graph.storages[storage] for storage in storages)


def describe_loss_room(room: int) -> str:
    """What a verdict says of the bytes for a loss outside of the plan; "" for none."""
    return f", with room for a loss of {format_bytes(room)}," if room else ""


def describe_cost_source(graph: Graph, costs: Costs) -> str:
    """Where no op was measured, for which device it is; where much of the step was measured beside
    other work, that it was."""
    if costs.device.described:
        return f"; planned for {costs.device.name}, which is not here"
    lost = costs.lost(graph)
    if lost < PREEMPTION_THRESHOLD:
        return ""
    return (
        f"; {lost:.0%} of the predicted time is of ops that were measured while other work had the "
        "processors, so that it may be off: a new `store`, or `tightfit run --remeasure`, measures "
        "them again"
    )


def describe_link_source(link: HostLink) -> str:
    """When the speed of a link was measured, without its figures."""
    measured = link.source.startswith("measured here")
    return f"; the link was {link.source.partition(': ')[0]}" if measured else ""
