"""What is known of a plan with the updates of an optimizer: where parameters and states are."""

from __future__ import annotations

from tightfit.schemas.actions import UpdateOnDevice, UpdateOnHost
from tightfit.schemas.graph.training_graph import Graph
from tightfit.schemas.optimizer_plan import OptimizerPlan
from tightfit.stages.report.formatting import format_bytes, format_count
from tightfit.stages.report.load import PlanResult
from tightfit.stages.report.measured_facts import Fact


def optimizer_buffer_bytes(result: PlanResult) -> int:
    """The bytes of the device that states and updates pass through, which a budget counts beside
    those of the step."""
    updates = result.updates
    return 0 if updates is None else updates.staging + updates.workspace_bytes


def activation_budget_bytes(result: PlanResult) -> int | None:
    """What a budget leaves to the memory of the step beside these buffers, None without a
    budget."""
    whole = result.plan.budget_bytes
    return None if whole is None else whole - optimizer_buffer_bytes(result)


def optimizer_step_facts(result: PlanResult, graph: Graph | None) -> list[Fact]:
    """The optimizer of a plan, what it keeps where, and where it updates; nothing of a plan without
    updates."""
    updates = result.updates
    if updates is None or graph is None:
        return []
    facts = [("Optimizer", _describe_optimizer(updates))]
    facts.append(("Microbatches", f"{updates.microbatches} a step"))
    if overlap := result.plan.overlap:
        words = "updates and transfers of a step end in the next one"
        peaks = f"first step {format_bytes(overlap.first_peak)}"
        peaks += f", those after it {format_bytes(overlap.steady_peak)}"
        facts.append(("Steps", f"{words}; peaks: {peaks}"))
    facts.append(("Parameters that wait", _describe_parameters(updates, graph)))
    facts.append(("States", _describe_states(result, updates)))
    facts.append(("Updates", _describe_updates(result)))
    if updates.staging or updates.workspace_bytes:
        words = f"{format_bytes(updates.staging)} that states pass through"
        if updates.workspace_bytes:
            words += f", {format_bytes(updates.workspace_bytes)} for updates in the offload target"
        facts.append(("Buffers on the device", words))
    return facts


def _describe_optimizer(updates: OptimizerPlan) -> str:
    if not updates.optimizer:
        return "described, and not run"
    settings = ", ".join(f"{name} {value}" for name, value in sorted(updates.settings.items()))
    return f"{updates.optimizer} ({settings})" if settings else updates.optimizer


def _describe_parameters(updates: OptimizerPlan, graph: Graph) -> str:
    sizes = {value: graph.storages[graph.values[value].storage] for value in updates.offloaded}
    total = format_bytes(sum(sizes.values()))
    words = f"{len(sizes)} of {len(updates.costs)}, {total}"
    if updates.resident:
        stay = format_bytes(sum(sizes[value] for value in updates.resident))
        words += f"; {stay} of them are on the device between steps, too"
    return words


def _describe_states(result: PlanResult, updates: OptimizerPlan) -> str:
    """The bytes of states in each memory."""
    apart = updates.on_device | updates.second_tier_parameters
    sizes = {value: cost.states for value, cost in updates.costs.items()}
    target = result.link.to if result.link is not None else "offload target"
    places = [
        (f"in the {target}", sum(size for value, size in sizes.items() if value not in apart)),
        ("on the device", sum(sizes[value] for value in updates.on_device)),
    ]
    if updates.second_tier is not None:
        name = updates.second_tier.link.to
        places.append((f"in the {name} behind it", updates.second_tier.states(updates.costs)))
    return ", ".join(f"{format_bytes(size)} {place}" for place, size in places if size) or "none"


def _describe_updates(result: PlanResult) -> str:
    actions = [step.action for step in result.steps or ()]
    here = sum(isinstance(action, UpdateOnDevice) for action in actions)
    away = sum(isinstance(action, UpdateOnHost) for action in actions)
    words = f"{format_count(here, 'parameter')} on the device"
    return f"{words}, {away} in the offload target" if away else words
