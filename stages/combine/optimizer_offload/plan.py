"""What is said of a whole step that was found, and what is written of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from tightfit.schemas.actions import UpdateOnHost
from tightfit.schemas.graph.fused_groups import count_executed_groups
from tightfit.schemas.optimizer_plan import MICROBATCH_SCHEDULE, OPTIMIZER_OFFLOAD
from tightfit.schemas.plan import (
    STEP_OVERLAP_VERSION,
    BaselineBytes,
    Plan,
    PlanCost,
    StepOverlap,
    optimality_gap,
    write_plan,
)
from tightfit.schemas.schedule import write_schedule
from tightfit.stages.combine.memory_budget import baseline_bytes
from tightfit.stages.combine.optimizer_offload.cycle_bound import cycle_lower_bound
from tightfit.stages.combine.optimizer_offload.gradient_accumulation import accumulation_peaks
from tightfit.stages.combine.optimizer_offload.lower_bound import lower_bound_seconds
from tightfit.stages.combine.optimizer_offload.problem import OffloadProblem
from tightfit.stages.combine.optimizer_offload.search import OffloadSearchResult
from tightfit.stages.combine.plan_summary import describe_cost_source, describe_link_source
from tightfit.stages.simulate.cyclic_schedule import unroll_cycle
from tightfit.stages.simulate.liveness import simulate_executions
from tightfit.stages.simulate.offload_layout import offload_layout
from tightfit.stages.simulate.simulate import simulate, sum_microbatches
from tightfit.util.budget import MIN_BUDGET

OUTPUTS = ("schedule.arrow", MICROBATCH_SCHEDULE, "plan.json")
SOLVER_NAME = "local search"


def write_offload_plan(
    folder: Path,
    task: OffloadProblem,
    found: OffloadSearchResult,
    budget: str,
    digest: str,
    choices: Sequence[int] = (),
) -> Plan:
    """Writes the schedule of what was found, that of the microbatches that only add, which has no
    steps where there are none, and the plan, which it returns; `digest` is that of the graph, and
    the number of microbatches was taken from these `choices`."""
    steps = found.simulation.steps
    write_schedule(folder / OUTPUTS[0], steps, digest, task.link, found.updates)
    adding, adds = [], None
    if found.adding is not None:
        adding = found.adding.steps
        adds = task.played(found.updates.resident, here=False, adds=True)
    write_schedule(folder / OUTPUTS[1], adding, digest, task.link, adds)
    plan = build_offload_plan(task, found, budget, choices)
    write_plan(folder / OUTPUTS[2], plan)
    return plan


def write_infeasible_plan(
    folder: Path, task: OffloadProblem, message: str, smallest: int | None, budget: str, digest: str
) -> Plan:
    """Writes schedules without steps and the plan whose message says why there is none within the
    budget of the task, with the `smallest` for which one is known, which it returns; `digest` is
    that of the graph."""
    write_schedule(folder / OUTPUTS[0], [], digest, task.link)
    write_schedule(folder / OUTPUTS[1], [], digest, task.link)
    plan = Plan(
        strategy=OPTIMIZER_OFFLOAD,
        budget=budget,
        budget_total=task.budget,
        budget_bytes=task.room,
        status="infeasible",
        message=f"infeasible: {message}",
        smallest_budget=smallest,
        keep_all=_keep_all_cost(task),
        baseline=_offload_baseline(task),
        solver=SOLVER_NAME,
        kernels="eager",
        threads=task.costs.device.measured_threads,
    )
    write_plan(folder / OUTPUTS[2], plan)
    return plan


def _offload_baseline(task: OffloadProblem) -> BaselineBytes:
    """The bytes that no plan of the task changes. Parameters that live in the offload target are
    none of them; states that stay on the device, and sums of gradients, are there as parameters
    are."""
    fixed = baseline_bytes(task.graph)
    more = task.fixed - fixed.bytes_before_step
    return replace(fixed, parameters=fixed.parameters + more)


def _keep_all_cost(task: OffloadProblem) -> PlanCost:
    """What the step takes where everything is on the device, with all states."""
    moving = sum(task.graph.storages[storage] for storage in task.remote)
    return PlanCost(task.keep_all_seconds, moving + _keep_all_step_bytes(task))


def build_offload_plan(
    task: OffloadProblem, found: OffloadSearchResult, budget: str, choices: Sequence[int] = ()
) -> Plan:
    """The plan with its bound, of which the message names the numbers of microbatches that were
    `choices`. Parameters that live in the offload target are not fixed, and keeping everything
    means to have them on the device, with all states."""

    played = found.simulation
    groups, compiled = count_executed_groups(task.graph, (step.action for step in played.steps))
    seconds = found.seconds
    least = lower_bound_seconds if found.cycle is None else cycle_lower_bound
    bound = min(least(replace(task, resident=frozenset())), seconds)
    gap = optimality_gap(seconds, bound)
    all_of_it = sum_microbatches(played, found.adding, task.microbatches)
    most = all_of_it.peak
    total = total_device_bytes(task, found)
    there = all_of_it.transfers
    waited = there.wait_seconds if there else 0.0
    sentence = (
        f"feasible: {total:,} bytes of the device{_resident_states_message(task)} for the whole "
        f"step{_microbatches_message(task.microbatches, budget, choices)}, in "
        f"{seconds / task.keep_all_seconds:.3f} times the predicted time of having everything "
        f"there{_host_updates_message(task, found)}{_cycle_message(found)}, "
        f"no plan is more than {gap:.1%} faster; "
        f"{there.host_peak if there else 0:,} bytes in "
        f"{task.link.other}{_second_tier_message(task)}, and "
        f"computations wait for {waited / seconds:.1%} of the time"
        f"{describe_link_source(task.link)}{describe_cost_source(task.graph, task.costs)}"
    )
    return Plan(
        strategy=OPTIMIZER_OFFLOAD,
        budget=budget,
        budget_total=task.budget,
        budget_bytes=task.room,
        status="feasible",
        message=sentence,
        time=seconds,
        peak=most,
        lower_bound=bound,
        gap=gap,
        keep_all=_keep_all_cost(task),
        baseline=_offload_baseline(task),
        recomputed=played.repeated,
        recomputed_time=played.repeated_seconds,
        solver=SOLVER_NAME,
        transfers=there,
        kernels="fused" if groups else "eager",
        groups=groups,
        compiled=compiled,
        threads=task.costs.device.measured_threads,
        microbatches=task.microbatches,
        overlap=_step_overlap(found),
    )


def _step_overlap(found: OffloadSearchResult) -> StepOverlap | None:
    cycle = found.cycle
    if cycle is None:
        return None
    return StepOverlap(
        STEP_OVERLAP_VERSION, cycle.first_peak, cycle.steady_peak, cycle.closing_peak
    )


def _cycle_message(found: OffloadSearchResult) -> str:
    """What a sentence says of steps without a seam."""
    if found.cycle is None:
        return ""
    return " (steps overlap: transfers and updates of one end in the next)"


def total_device_bytes(task: OffloadProblem, found: OffloadSearchResult) -> int:
    """The bytes of the device that a plan takes in all, as budgets count them."""
    return (
        task.fixed
        + found.updates.staging
        + found.updates.workspace_bytes
        + max_step_bytes(task, found)
    )


def offload_target_bytes(task: OffloadProblem, found: OffloadSearchResult) -> int:
    """The bytes of the offload target that a plan takes: what is always there, and the places of
    what a step sends."""
    remote = frozenset(task.remote)
    played = [found.simulation.steps, *([] if found.adding is None else [found.adding.steps])]
    if found.cycle is not None:
        played = [unroll_cycle(task.graph, found.simulation.steps, count=3)]
    copies = max(offload_layout(task.graph, steps, remote).size for steps in played)
    return found.updates.host_bytes(task.graph) + copies


def max_step_bytes(task: OffloadProblem, found: OffloadSearchResult) -> int:
    """The most bytes that budgets count of the device, above what is there all the time: in first
    steps, too, where these are known, and where gradients add up."""
    most = 0
    several = [(found.simulation, found.updates)]
    if found.adding is not None:
        adds = task.played(found.updates.resident, here=False, adds=True)
        several.append((found.adding, adds))
    for played, updates in several:
        most = max(most, played.peak)
        more = (task.graph, task.costs, played.steps)
        if task.measured is not None:
            begun = simulate(*more, link=task.link, updates=replace(updates, first=True))
            most = max(most, begun.peak - (task.sums if updates.accumulates else 0))
        if task.accumulating:
            adding = accumulation_peaks(*more, task.link, updates)
            most = max(most, adding.most - adding.gradients)
    return most


def _microbatches_message(count: int, budget: str, choices: Sequence[int]) -> str:
    """What a sentence says of the microbatches of a step, and from which numbers they were
    taken."""
    others = ", ".join(str(each) for each in choices if each != count)
    if not others:
        return f" in {count} microbatches" if count > 1 else ""
    noun = "microbatch" if count == 1 else "microbatches"
    least = "the fewest bytes" if budget == MIN_BUDGET else "the least time per sample"
    return f" in {count} {noun} ({least}, compared with {others})"


def _host_updates_message(task: OffloadProblem, found: OffloadSearchResult) -> str:
    """What a sentence says of updates in the offload target, which take no time of the device: with
    them a step can take less than with everything there."""
    away = sum(isinstance(step.action, UpdateOnHost) for step in found.simulation.steps)
    if not away:
        return ""
    return (
        f" and updated there, while {away} of {len(task.updates)} updates are done beside "
        f"{task.link.other} meanwhile"
    )


def _resident_states_message(task: OffloadProblem) -> str:
    """What a sentence says of states that were chosen to stay on the device."""
    size = sum(task.updates[value].states for value in task.resident)
    return f", {size:,} of them for states that stay there," if size else ""


def _second_tier_message(task: OffloadProblem) -> str:
    """What a sentence says of a second offload tier."""
    far = task.far
    return "" if far is None else f" and {far.states(task.updates):,} in {far.link.other}"


def keep_all_bytes(task: OffloadProblem) -> int:
    """The bytes of the device where everything is there, with all states."""
    return baseline_bytes(task.graph).bytes_before_step + _keep_all_step_bytes(task)


def _keep_all_step_bytes(task: OffloadProblem) -> int:
    """The most bytes of the step where everything is on the device, with all states."""

    captured = range(len(task.problem.nodes))
    played = simulate_executions(task.problem, captured, in_place=False)
    states = sum(cost.states for cost in task.updates.values())
    return max(each.peak for each in played) + states
