"""`whole`: plans a training step with its optimiser for a described machine with two memories."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from schemas.derived import Derived
from schemas.errors import ConfigError, ScheduleError

if TYPE_CHECKING:
    from schemas.link import HostLink
    from schemas.plan import Plan
    from stages.combine.whole.search import Found
    from stages.combine.whole.task import Task

OPTIMIZERS = ("sgd", "momentum", "adam", "adamw")
OUTPUTS = ("schedule.arrow", "plan.json")
ADDING = "microbatch.arrow"
"""The schedule of each microbatch but the last one."""
LEAST = 1 << 20
"""Parameters of fewer bytes stay on the device."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's options."""
    parser.add_argument(
        "--graph",
        type=Path,
        action="append",
        required=True,
        help="graph.arrow of the model; several for microbatches of other sizes, of which the "
        "fastest is taken",
    )
    parser.add_argument(
        "--costs", type=Path, action="append", required=True, help="costs.arrow of each graph"
    )
    parser.add_argument(
        "--microbatches",
        type=int,
        action="append",
        help="how many of each graph make a step, 1 unless given; gradients are added up",
    )
    parser.add_argument(
        "--machine",
        type=Path,
        required=True,
        help="machine.json: a device with its speeds, a memory and the link between them; and, "
        "where that has no room for all states, a memory linked with it",
    )
    parser.add_argument("--optimizer", choices=OPTIMIZERS, default="adamw")
    parser.add_argument(
        "--budget", required=True, help="the bytes of the device for everything, such as 12GB"
    )
    parser.add_argument("--out", type=Path, required=True, help="the folder to write into")


def run(options: argparse.Namespace) -> None:
    """Writes schedule.arrow, microbatch.arrow where there are several microbatches, and plan.json.
    Raises ConfigError where no plan is found."""
    from schemas.graph import GRAPH
    from schemas.plan import write_plan
    from schemas.schedule import write_schedule
    from schemas.store import read

    found: list[tuple[Task, Found, Path]] = []
    refused = None
    for graph, costs, count in cases_of(options):
        try:
            task, best = planned(*read_task(options, graph, costs, count))
            found.append((task, best, graph))
        except ScheduleError as error:
            raise ConfigError(f"{graph}: no whole step is planned: {error}") from error
        except ConfigError as error:
            refused = error
    if not found:
        assert refused is not None
        raise refused
    task, best, graph = min(found, key=lambda each: each[1].seconds)
    digest = read(graph, GRAPH).digest
    write_schedule(options.out / OUTPUTS[0], best.replay.steps, digest, task.link, best.updates)
    (options.out / ADDING).unlink(missing_ok=True)
    if best.adding is not None:
        adds = task.played(best.updates.there, here=False, adds=True)
        write_schedule(options.out / ADDING, best.adding.steps, digest, task.link, adds)
    write_plan(options.out / OUTPUTS[1], plan_of(task, best, options.budget))


def cases_of(options: argparse.Namespace) -> list[tuple[Path, Path, int]]:
    """The graphs with their costs and how many microbatches of each make a step; raises ConfigError
    where these are not as many, or a number is below 1."""
    counts = options.microbatches or [1] * len(options.graph)
    if not len(options.graph) == len(options.costs) == len(counts):
        raise ConfigError(
            f"whole: there are {len(options.graph)} --graph, {len(options.costs)} --costs and "
            f"{len(counts)} --microbatches"
        )
    if min(counts) < 1:
        raise ConfigError(f"whole: --microbatches is {min(counts)}, expected at least 1")
    return list(zip(options.graph, options.costs, counts, strict=True))


def planned(task: Task, beyond: HostLink | None) -> tuple[Task, Found]:
    """The plan with the fewest states in the memory `beyond` the other one, and its task; raises
    ConfigError where none is found."""
    from stages.combine.whole.far import with_states_far
    from stages.combine.whole.search import Search

    refused = None
    for each in with_states_far(task, beyond):
        try:
            return each, Search(each).best()
        except ConfigError as error:
            refused = refused or error
    assert refused is not None
    raise refused


def read_task(
    options: argparse.Namespace, traced: Path, paid: Path, microbatches: int
) -> tuple[Task, HostLink | None]:
    """The task of a graph, and the link to a third memory where there is one; raises ConfigError
    where it cannot be planned."""
    from dataclasses import replace

    from schemas.budget import parse_budget
    from schemas.costs import read_costs
    from schemas.graph import read_graph
    from schemas.link import host_link, link_beyond
    from schemas.machine import read_machine
    from stages.combine.whole.described import described_costs
    from stages.combine.whole.task import task_of

    graph, costs = read_graph(traced), read_costs(paid)
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
    task = task_of(graph, costs, own, updates, budget.size, LEAST, microbatches)
    return task, link_beyond(machine, link, options.machine)


def plan_of(task: Task, found: Found, budget: str) -> Plan:
    """The plan with its bound. Parameters that live in the other memory are not fixed, and keeping
    everything means to have them on the device, with all states."""
    from dataclasses import replace

    from schemas.plan import Plan, PlanCost, gap_of
    from stages.combine.fixed import fixed_bytes
    from stages.combine.whole.bound import least_whole_seconds

    played, fixed = found.replay, fixed_bytes(task.graph)
    moving = sum(task.graph.storages[storage] for storage in task.remote)
    fixed = replace(fixed, parameters=fixed.parameters - moving)
    seconds = found.seconds
    bound = min(least_whole_seconds(task), seconds)
    gap = gap_of(seconds, bound)
    most = max(played.peak, found.adding.peak if found.adding else 0)
    total = task.fixed + found.updates.staging + most
    there, count = played.transfers, task.microbatches
    parts = f" in {count} microbatches" if count > 1 else ""
    waited = there.waited if there else 0.0
    sentence = (
        f"feasible: {total:,} bytes of the device for the whole step{parts}, in "
        f"{seconds / task.unconstrained:.3f} times the predicted time of having everything "
        f"there, no plan is more than {gap:.1%} faster; {there.host_peak if there else 0:,} bytes "
        f"in {task.link.other}{_beyond(task)}, and computations wait for "
        f"{waited / played.seconds:.1%} of the time"
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
    )


def _beyond(task: Task) -> str:
    """What a sentence says of a third memory."""
    far = task.far
    return "" if far is None else f" and {far.states(task.updates):,} in {far.link.other}"


def _kept(task: Task) -> int:
    """The most bytes of the step where everything is on the device, with all states."""
    from stages.replay.line import executions

    captured = range(len(task.problem.nodes))
    played = executions(task.problem, captured, in_place=False)
    states = sum(cost.states for cost in task.updates.values())
    return max(each.peak for each in played) + states


def derived(options: argparse.Namespace) -> list[Derived]:
    """What `run` made of what."""
    outputs = [options.out / name for name in OUTPUTS]
    read = [*options.graph, *options.costs, options.machine]
    outputs += [path for path in (options.out / ADDING,) if path.exists()]
    return [
        Derived(
            outputs,
            read,
            {
                "budget": options.budget,
                "optimizer": options.optimizer,
                "microbatches": options.microbatches or [],
            },
        )
    ]
