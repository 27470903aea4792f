"""What is said of a whole step that was found, and what is written of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from tightfit.schemas.actions import OptimiseAway
from tightfit.schemas.groups import run_groups
from tightfit.schemas.lineage import remove
from tightfit.schemas.plan import Plan, PlanCost, gap_of, write_plan
from tightfit.schemas.schedule import write_schedule
from tightfit.stages.combine.fixed import fixed_bytes
from tightfit.stages.combine.sources import of_costs, of_link
from tightfit.stages.combine.whole.accumulating import accumulating
from tightfit.stages.combine.whole.bound import least_whole_seconds
from tightfit.stages.combine.whole.search import Found
from tightfit.stages.combine.whole.task import Task
from tightfit.stages.replay.line import executions
from tightfit.stages.replay.microbatches import together
from tightfit.stages.replay.referee import replay

OUTPUTS = ("schedule.arrow", "plan.json")
ADDING = "microbatch.arrow"
"""The schedule of each microbatch but the last one."""


def write_found(folder: Path, task: Task, found: Found, budget: str, digest: str) -> Plan:
    """Writes the schedule of what was found, that of the microbatches that only add where there are
    some, and the plan, which it returns; `digest` is that of the graph."""
    steps = found.replay.steps
    write_schedule(folder / OUTPUTS[0], steps, digest, task.link, found.updates)
    remove(folder / ADDING)
    if found.adding is not None:
        adds = task.played(found.updates.there, here=False, adds=True)
        write_schedule(folder / ADDING, found.adding.steps, digest, task.link, adds)
    plan = plan_of(task, found, budget)
    write_plan(folder / OUTPUTS[1], plan)
    return plan


def plan_of(task: Task, found: Found, budget: str) -> Plan:
    """The plan with its bound. Parameters that live in the other memory are not fixed, and keeping
    everything means to have them on the device, with all states."""

    played, fixed = found.replay, fixed_bytes(task.graph)
    groups, compiled = run_groups(task.graph, (step.action for step in played.steps))
    moving = sum(task.graph.storages[storage] for storage in task.remote)
    # States that stay on the device, and sums of gradients, are there as parameters are.
    beside = task.fixed - (fixed.there_before - moving)
    fixed = replace(fixed, parameters=fixed.parameters - moving + beside)
    seconds = found.seconds
    bound = min(least_whole_seconds(replace(task, resident=frozenset())), seconds)
    gap = gap_of(seconds, bound)
    all_of_it = together(played, found.adding, task.microbatches)
    most = all_of_it.peak
    total = total_bytes(task, found)
    there, count = all_of_it.transfers, task.microbatches
    parts = f" in {count} microbatches" if count > 1 else ""
    waited = there.waited if there else 0.0
    sentence = (
        f"feasible: {total:,} bytes of the device{_staying(task)} for the whole step{parts}, in "
        f"{seconds / task.unconstrained:.3f} times the predicted time of having everything "
        f"there{_beside(task, found)}, no plan is more than {gap:.1%} faster; "
        f"{there.host_peak if there else 0:,} bytes in {task.link.other}{_beyond(task)}, and "
        f"computations wait for {waited / seconds:.1%} of the time"
        f"{of_link(task.link)}{of_costs(task.graph, task.costs)}"
    )
    return Plan(
        strategy="whole",
        budget=budget,
        budget_total=task.budget,
        budget_bytes=task.room,
        verdict="feasible",
        sentence=sentence,
        time=seconds,
        peak=most,
        lower_bound=bound,
        gap=gap,
        keep_all=PlanCost(task.unconstrained, moving + _kept(task)),
        fixed=fixed,
        recomputed=played.repeated,
        recomputed_time=played.repeated_seconds,
        solver="local search",
        transfers=there,
        kernels="fused" if groups else "eager",
        groups=groups,
        compiled=compiled,
    )


def total_bytes(task: Task, found: Found) -> int:
    """The bytes of the device that a plan takes in all, as budgets count them."""
    return task.fixed + found.updates.staging + found.updates.bench + most_bytes(task, found)


def most_bytes(task: Task, found: Found) -> int:
    """The most bytes that budgets count of the device, above what is there all the time: in first
    steps, too, where these are known, and where gradients add up."""
    most = 0
    several = [(found.replay, found.updates)]
    if found.adding is not None:
        adds = task.played(found.updates.there, here=False, adds=True)
        several.append((found.adding, adds))
    for played, updates in several:
        most = max(most, played.peak)
        more = (task.graph, task.costs, played.steps)
        if task.measured is not None:
            begun = replay(*more, link=task.link, updates=replace(updates, first=True))
            most = max(most, begun.peak - (task.sums if updates.adds else 0))
        if task.accumulating:
            adding = accumulating(*more, task.link, updates)
            most = max(most, adding.most - adding.gradients)
    return most


def _beside(task: Task, found: Found) -> str:
    """What a sentence says of updates in the other memory, which take no time of the device: with
    them a step can take less than with everything there."""
    away = sum(isinstance(step.action, OptimiseAway) for step in found.replay.steps)
    if not away:
        return ""
    return (
        f" and updated there, while {away} of {len(task.updates)} updates are done beside "
        f"{task.link.other} meanwhile"
    )


def _staying(task: Task) -> str:
    """What a sentence says of states that were chosen to stay on the device."""
    size = sum(task.updates[value].states for value in task.resident)
    return f", {size:,} of them for states that stay there," if size else ""


def _beyond(task: Task) -> str:
    """What a sentence says of a third memory."""
    far = task.far
    return "" if far is None else f" and {far.states(task.updates):,} in {far.link.other}"


def everything(task: Task) -> int:
    """The bytes of the device where everything is there, with all states."""
    return fixed_bytes(task.graph).there_before + _kept(task)


def _kept(task: Task) -> int:
    """The most bytes of the step where everything is on the device, with all states."""

    captured = range(len(task.problem.nodes))
    played = executions(task.problem, captured, in_place=False)
    states = sum(cost.states for cost in task.updates.values())
    return max(each.peak for each in played) + states
