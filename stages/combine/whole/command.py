"""`whole`: plans a training step with its optimiser for a described machine with two memories."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from schemas.derived import Derived
from schemas.errors import ConfigError, ScheduleError

if TYPE_CHECKING:
    from schemas.plan import Plan
    from stages.combine.whole.search import Found
    from stages.combine.whole.task import Task

OPTIMIZERS = ("sgd", "momentum", "adam", "adamw")
OUTPUTS = ("schedule.arrow", "plan.json")
LEAST = 1 << 20
"""Parameters of fewer bytes stay on the device."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's options."""
    parser.add_argument("--graph", type=Path, required=True, help="graph.arrow of the model")
    parser.add_argument("--costs", type=Path, required=True, help="costs.arrow on the device")
    parser.add_argument(
        "--machine",
        type=Path,
        required=True,
        help="machine.json: a device with its speeds, a memory and the link between them",
    )
    parser.add_argument("--optimizer", choices=OPTIMIZERS, default="adamw")
    parser.add_argument(
        "--budget", required=True, help="the bytes of the device for everything, such as 12GB"
    )
    parser.add_argument("--out", type=Path, required=True, help="the folder to write into")


def run(options: argparse.Namespace) -> None:
    """Writes schedule.arrow and plan.json. Raises ConfigError where no plan is found."""
    from schemas.graph import GRAPH
    from schemas.plan import write_plan
    from schemas.schedule import write_schedule
    from schemas.store import read
    from stages.combine.whole.search import Search

    task = read_task(options)
    try:
        found = Search(task).best()
    except ScheduleError as error:
        raise ConfigError(f"{options.graph}: no whole step is planned: {error}") from error
    steps, digest = found.replay.steps, read(options.graph, GRAPH).digest
    write_schedule(options.out / OUTPUTS[0], steps, digest, task.link, found.updates)
    write_plan(options.out / OUTPUTS[1], plan_of(task, found, options.budget))


def read_task(options: argparse.Namespace) -> Task:
    """The task of the options; raises ConfigError where it cannot be planned."""
    from dataclasses import replace

    from schemas.budget import parse_budget
    from schemas.costs import read_costs
    from schemas.graph import read_graph
    from schemas.link import host_link
    from schemas.machine import read_machine
    from stages.combine.whole.described import described_costs
    from stages.combine.whole.task import task_of

    graph, costs = read_graph(options.graph), read_costs(options.costs)
    machine = read_machine(options.machine)
    device, link = machine.single(options.machine), host_link(machine, options.machine)
    budget = parse_budget(options.budget)
    if budget.size is None:
        raise ConfigError(f"whole: --budget is bytes of the device, not {options.budget!r}")
    if budget.size > device.memory:
        raise ConfigError(
            f"{options.machine}: {device.name} has {device.memory} bytes, less than the budget of "
            f"{budget.size}"
        )
    beside = next(memory for memory in machine.memories if memory.name == link.to)
    updates = described_costs(graph, device, beside.bandwidth, options.optimizer)
    own = replace(link, device=graph.device)
    return task_of(graph, costs, own, updates, budget.size, LEAST)


def plan_of(task: Task, found: Found, budget: str) -> Plan:
    """The plan with its bound. Parameters that live in the other memory are not fixed, and keeping
    everything means to have them on the device, with all states."""
    from dataclasses import replace

    from schemas.plan import Cost, Plan, gap_of
    from stages.combine.fixed import fixed_bytes
    from stages.combine.whole.bound import least_whole_seconds

    played, fixed = found.replay, fixed_bytes(task.graph)
    moving = sum(task.graph.storages[storage] for storage in task.remote)
    fixed = replace(fixed, parameters=fixed.parameters - moving)
    bound = min(least_whole_seconds(task), played.seconds)
    gap = gap_of(played.seconds, bound)
    total = task.fixed + found.updates.staging + played.peak
    there = played.transfers
    sentence = (
        f"feasible: {total:,} bytes of the device for the whole step, in "
        f"{played.seconds / task.unconstrained:.3f} times the predicted time of having everything "
        f"there, no plan is more than {gap:.1%} faster; {there.host_peak if there else 0:,} bytes "
        f"in {task.link.other}, and computations wait for "
        f"{(there.waited if there else 0.0) / played.seconds:.1%} of the time"
    )
    return Plan(
        strategy="whole",
        budget=budget,
        budget_total=task.budget,
        budget_bytes=task.room,
        verdict="feasible",
        sentence=sentence,
        time=played.seconds,
        peak=played.peak,
        lower_bound=bound,
        gap=gap,
        keep_all=Cost(task.unconstrained, moving + _kept(task)),
        fixed=fixed,
        recomputed=played.repeated,
        recomputed_time=played.repeated_seconds,
        solver="local search",
        transfers=there,
    )


def _kept(task: Task) -> int:
    """The most bytes of the step where everything is on the device, with all states."""
    from stages.replay.line import executions

    captured = range(len(task.problem.nodes))
    runs = executions(task.problem, captured, in_place=False)
    states = sum(cost.states for cost in task.updates.values())
    return max(run.peak for run in runs) + states


def derived(options: argparse.Namespace) -> list[Derived]:
    """What `run` made of what."""
    outputs = [options.out / name for name in OUTPUTS]
    read = [options.graph, options.costs, options.machine]
    return [Derived(outputs, read, {"budget": options.budget, "optimizer": options.optimizer})]
