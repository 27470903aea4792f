"""`optimizer-offload`: plans a training step with its optimizer for a described machine with two
memories."""

from __future__ import annotations

import argparse
import contextlib
import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from tightfit.schemas.graph.offloadable_parameters import MIN_OFFLOAD_BYTES
from tightfit.schemas.machine import machine_path
from tightfit.schemas.optimizer_plan import (
    OFFLOADED_PARAMETERS,
    ON_DEVICE,
    PARAMETER_PLACES,
    small_parameters_error,
)
from tightfit.util.budget import MIN_BUDGET as SMALLEST
from tightfit.util.command_line import LineageEntry, parse_settings
from tightfit.util.errors import ConfigError, ScheduleError
from tightfit.util.solver_engines import ENGINES, HIGHS_ENGINE

if TYPE_CHECKING:
    from tightfit.schemas.graph.training_graph import Graph
    from tightfit.schemas.link import HostLink
    from tightfit.schemas.machine import Machine
    from tightfit.schemas.optimizer_plan import ParameterUpdateCost
    from tightfit.schemas.plan import Plan
    from tightfit.stages.combine.optimizer_offload.problem import OffloadProblem
    from tightfit.stages.combine.optimizer_offload.search import OffloadSearchResult

OPTIMIZERS = ("sgd", "momentum", "adam", "adamw")
MAX_ROOM_RETRIES = 4
"""How often a plan is looked for with less room in the offload target where one takes too much."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's options."""
    parser.add_argument(
        "--graph",
        type=Path,
        action="append",
        required=True,
        help="graph.arrow of the model; several for microbatches of other sizes, of which the "
        "fastest is taken, or the smallest for the budget min",
    )
    parser.add_argument(
        "--costs", type=Path, action="append", required=True, help="costs.arrow of each graph"
    )
    parser.add_argument(
        "--microbatches",
        type=int,
        action="append",
        help="how many of each graph make a step, 1 unless given; gradients are added up. Several "
        "for a single graph: the number with the least time per sample is taken, or the smallest "
        "step for the budget min",
    )
    add_step_arguments(parser)
    parser.add_argument("--out", type=Path, required=True, help="the folder to write into")


def add_step_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options that say what a step with its optimizer is planned for."""
    parser.add_argument(
        "--machine",
        type=machine_path,
        required=True,
        help="machine.json: a device with its speeds, a memory and the link between them; and, "
        "where that has no room for all states, a memory linked with it",
    )
    parser.add_argument(
        "--optimizer", choices=OPTIMIZERS, help="of described updates (default: adamw)"
    )
    parser.add_argument(
        "--optimizer-settings",
        type=parse_settings,
        default={},
        help='JSON object of its settings, as torch.optim takes them: {"momentum": 0.9}',
    )
    parser.add_argument(
        "--updates",
        type=Path,
        help="updates.json, measured by profile --optimizer: such a plan can be run",
    )
    parser.add_argument(
        "--budget",
        required=True,
        help="the bytes of the device for everything, such as 12GB; a share, such as 30%%, of what "
        "is not there all the time; or min, the least that a plan is known for",
    )
    parser.add_argument(
        "--parameters",
        choices=PARAMETER_PLACES,
        default=OFFLOADED_PARAMETERS,
        help="where parameters wait: offload, those of 1 MiB and more in the offload target, or "
        "device, all on the device, where only states wait elsewhere (default: offload)",
    )
    parser.add_argument(
        "--activations",
        choices=PARAMETER_PLACES,
        default=OFFLOADED_PARAMETERS,
        help="where activations wait that are not computed again: offload, in the offload target "
        "too, or device (default: offload)",
    )
    parser.add_argument(
        "--limit",
        help="the bytes of the offload target that may be taken, such as 20GB (default: those that "
        "the machine has)",
    )
    parser.add_argument(
        "--solver",
        choices=ENGINES,
        default=HIGHS_ENGINE,
        help="what solves the integer programs that plans start from (default: highs)",
    )


def run(options: argparse.Namespace) -> None:
    """Writes schedule.arrow, microbatch.arrow (without steps unless there are several) and
    plan.json, and prints the status, which is "infeasible" where no plan fits in the budget or in
    the offload target. Raises ConfigError where there is none for another reason."""
    from tightfit.schemas.graph.training_graph import GRAPH
    from tightfit.schemas.store import read
    from tightfit.stages.combine.optimizer_offload.min_memory import (
        BudgetTooSmallError,
        OffloadTargetTooSmallError,
    )
    from tightfit.stages.combine.optimizer_offload.plan import write_offload_plan
    from tightfit.stages.combine.select_task import forget_measurement
    from tightfit.util.command_line import format_status

    cases = parse_cases(options)
    choices = sorted({count for _, _, count in cases}) if len(options.graph) == 1 else []
    found: list[tuple[OffloadProblem, OffloadSearchResult, Path]] = []
    small: list[_InfeasibleStep] = []
    refused: list[ConfigError] = []
    for graph, costs, count in cases:
        task = None
        try:
            task, beyond = read_offload_problem(options, graph, costs, count)
            found.append((*plan_within_room(task, beyond, options.budget), graph))
        except ScheduleError as error:
            raise ConfigError(f"{graph}: no whole step is planned: {error}") from error
        except ConfigError as error:
            known = isinstance(error, BudgetTooSmallError | OffloadTargetTooSmallError)
            if task is None or not known:
                refused.append(error)
            else:
                small.append(_InfeasibleStep(_task_of_budget(task, options.budget), error, graph))
    if not found and not small:
        raise refused[0]
    if found:
        # The least of several steps are of as many budgets.
        least = options.budget == SMALLEST
        task, best, graph = min(
            found,
            key=lambda each: (
                each[0].budget if least else 0,
                each[1].seconds / (each[0].microbatches if choices else 1),
            ),
        )
        given = (options.budget, read(graph, GRAPH).digest)
        plan = write_offload_plan(options.out, task, best, *given, choices)
    else:
        plan = min(small, key=lambda each: each.smallest or math.inf).write(options)
    if options.updates is None:
        forget_measurement(options.out)
    print(format_status(plan.status, plan.message))


@dataclass(frozen=True)
class _InfeasibleStep:
    """A graph for whose step there is no plan, and why."""

    task: OffloadProblem
    error: ConfigError
    graph: Path

    @property
    def smallest(self) -> int | None:
        """The smallest budget that a plan is known for."""
        return getattr(self.error, "smallest", None)

    def write(self, options: argparse.Namespace) -> Plan:
        """Writes the plan that says so, and returns it."""
        from tightfit.schemas.graph.training_graph import GRAPH
        from tightfit.schemas.store import read
        from tightfit.stages.combine.optimizer_offload.min_memory import OffloadTargetTooSmallError
        from tightfit.stages.combine.optimizer_offload.plan import write_infeasible_plan

        message = str(self.error)
        if isinstance(self.error, OffloadTargetTooSmallError):
            message = self.error.with_remedy(self._room_setting(options), "offload.second_disk")
        digest = read(self.graph, GRAPH).digest
        return write_infeasible_plan(
            options.out, self.task, message, self.smallest, options.budget, digest
        )

    def _room_setting(self, options: argparse.Namespace) -> str:
        """What sets the bytes of the offload target that may be taken."""
        if _parse_limit(options.limit) == self.task.link.room:
            return "offload.limit of the configuration (--limit)"
        if options.updates is None:
            return f"the memory of {self.task.link.to} in {options.machine}"
        return "freeing space there, or another folder by offload.disk"


def _task_of_budget(task: OffloadProblem, budget: str) -> OffloadProblem:
    """The task with the bytes of a budget that is a size or a share."""
    if budget == SMALLEST:
        return task
    from tightfit.stages.combine.optimizer_offload.budget_search import parse_total_bytes

    return replace(task, budget=parse_total_bytes(task, budget))


def parse_cases(options: argparse.Namespace) -> list[tuple[Path, Path, int]]:
    """The graphs with their costs and how many microbatches of each make a step, a single graph
    once for each number; raises ConfigError where these are not as many, or a number is below 1."""
    counts = options.microbatches or [1] * len(options.graph)
    alone = len(options.graph) == len(options.costs) == 1
    if not alone and not len(options.graph) == len(options.costs) == len(counts):
        raise ConfigError(
            f"optimizer-offload: there are {len(options.graph)} --graph, {len(options.costs)} "
            f"--costs and {len(counts)} --microbatches"
        )
    if min(counts) < 1:
        raise ConfigError(
            f"optimizer-offload: --microbatches is {min(counts)}, expected at least 1"
        )
    if alone:
        return [(options.graph[0], options.costs[0], count) for count in dict.fromkeys(counts)]
    return list(zip(options.graph, options.costs, counts, strict=True))


def plan_step(
    task: OffloadProblem, beyond: HostLink | None, budget: str | None = None
) -> tuple[OffloadProblem, OffloadSearchResult]:
    """The plan with the fewest states in the memory `beyond` the other one, and its task, with the
    budget as written (else that of the task); raises ConfigError where none is found, and
    BudgetTooSmallError where none is known to fit, which names the least budget that one is known
    for, unless none can fit, which takes no search."""
    from tightfit.stages.combine.optimizer_offload.budget_search import plan_for_budget as within
    from tightfit.stages.combine.optimizer_offload.min_memory import BudgetTooSmallError
    from tightfit.stages.combine.optimizer_offload.state_placement import candidate_problems

    refused: list[ConfigError] = []
    for each in candidate_problems(task, beyond):
        try:
            return within(each, budget or str(task.budget))
        except ConfigError as error:
            refused.append(error)
    if all(isinstance(error, BudgetTooSmallError) for error in refused):
        raise BudgetTooSmallError(
            f"{refused[0]}; the budget min takes the least that a plan is known for"
        )
    return _plan_known_min_budget(task, beyond, budget or str(task.budget), refused[0])


def plan_within_room(
    task: OffloadProblem, beyond: HostLink | None, budget: str
) -> tuple[OffloadProblem, OffloadSearchResult]:
    """As `plan_step`. What a step sends takes places in the offload target, which can be more bytes
    than are ever sent at once: a plan that takes more than there is room for is looked for anew
    with less. Raises ConfigError where none is found, and OffloadTargetTooSmallError where the
    target has too little room."""
    from tightfit.stages.combine.optimizer_offload.min_memory import OffloadTargetTooSmallError
    from tightfit.stages.combine.optimizer_offload.plan import offload_target_bytes

    room, sized, taken = task.link.room, task, 0
    for _ in range(MAX_ROOM_RETRIES):
        try:
            own, found = plan_step(sized, beyond, budget)
        except OffloadTargetTooSmallError:
            if taken:  # said of less room than there is
                break
            raise
        taken = offload_target_bytes(own, found)
        if taken <= room:
            return own, found
        less = sized.link.room - (taken - room)
        sized = replace(sized, link=replace(sized.link, room=less))
    raise OffloadTargetTooSmallError(
        f"the step takes {taken:,} bytes in {task.link.other}, which has {int(room):,}"
    )


def _plan_known_min_budget(
    task: OffloadProblem, beyond: HostLink | None, budget: str, refused: ConfigError
) -> tuple[OffloadProblem, OffloadSearchResult]:
    """The plan of the least budget that one is known for, where that is within a budget for which
    none was found; else raises what was said of that, with the least."""
    from tightfit.stages.combine.optimizer_offload.budget_search import (
        parse_total_bytes,
        plan_for_min_budget,
    )
    from tightfit.stages.combine.optimizer_offload.min_memory import (
        BudgetTooSmallError,
        UnknownPlanError,
    )
    from tightfit.stages.combine.optimizer_offload.state_placement import candidate_problems

    for each in candidate_problems(task, beyond):
        with contextlib.suppress(ConfigError):
            sized, found = plan_for_min_budget(each)
            break
    else:
        raise refused
    total = parse_total_bytes(task, budget) if budget != SMALLEST else sized.budget
    if sized.budget <= total:
        return replace(sized, budget=total), found
    said = refused.short if isinstance(refused, UnknownPlanError) else refused
    raise BudgetTooSmallError(
        f"{said}; the smallest budget known to work is {sized.budget:,} bytes", sized.budget
    ) from refused


def read_offload_problem(
    options: argparse.Namespace, traced: Path, paid: Path, microbatches: int
) -> tuple[OffloadProblem, HostLink | None]:
    """The task of a graph, and the link to a second offload tier where there is one; raises
    ConfigError where it cannot be planned."""
    from tightfit.schemas.costs import read_costs
    from tightfit.schemas.graph.training_graph import read_graph
    from tightfit.schemas.link import read_host_link, second_tier_link
    from tightfit.schemas.machine import read_machine
    from tightfit.schemas.optimizer_plan import read_optimizer_costs
    from tightfit.stages.combine.optimizer_offload.budget_search import parse_total_bytes
    from tightfit.stages.combine.optimizer_offload.optimizer_in_backward import costs_by_value
    from tightfit.stages.combine.optimizer_offload.problem import build_offload_problem
    from tightfit.util.budget import parse_plan_budget

    parse_plan_budget(options.budget, "--budget")
    graph, costs = read_graph(traced), read_costs(paid)
    machine = read_machine(options.machine)
    link = read_host_link(machine, options.machine)
    device = machine.devices[0]
    measured = None if options.updates is None else read_optimizer_costs(options.updates)
    if measured is None:
        updates = _read_spec_costs(options, graph, machine, link)
    elif options.optimizer is not None or options.optimizer_settings:
        raise ConfigError(
            f"optimizer-offload: {options.updates} says of which optimizer it is, not --optimizer"
        )
    else:
        updates = costs_by_value(graph, measured.costs)
    room = min(link.room, _parse_limit(options.limit))
    own = replace(link, device=graph.device, room=room)
    offloaded = options.parameters == OFFLOADED_PARAMETERS
    least = MIN_OFFLOAD_BYTES if offloaded else math.inf
    task = build_offload_problem(
        graph, costs, own, updates, device.memory, least, microbatches, measured
    )
    if measured is not None and offloaded and not task.remote:
        raise small_parameters_error(traced, MIN_OFFLOAD_BYTES)
    task = replace(task, engine=options.solver, activations_stay=options.activations == ON_DEVICE)
    budget = (
        device.memory if options.budget == SMALLEST else parse_total_bytes(task, options.budget)
    )
    if budget > device.memory:
        raise ConfigError(
            f"{options.machine}: {device.name} has {device.memory:,} bytes, less than the budget "
            f"of {budget:,}"
        )
    return task, second_tier_link(machine, link, options.machine)


def _parse_limit(written: str | None) -> float:
    """The bytes of the offload target that may be taken, infinite unless that is said; raises
    ConfigError where they are no size."""
    from tightfit.util.budget import parse_budget

    if written is None:
        return math.inf
    size = parse_budget(written, "--limit", "a size such as 20GB").size
    if size is None:
        raise ConfigError(f"--limit: {written!r} is a share, expected a size such as 20GB")
    return size


def _read_spec_costs(
    options: argparse.Namespace, graph: Graph, machine: Machine, link: HostLink
) -> dict[int, ParameterUpdateCost]:
    """What updates take by the description of a machine; raises ConfigError where that has no
    speeds."""
    from tightfit.stages.combine.optimizer_offload.optimizer_in_backward import (
        update_costs_from_spec,
    )

    beside = next(memory for memory in machine.memories if memory.name == link.to)
    device = machine.single_device(options.machine)
    optimizer, settings = options.optimizer or "adamw", options.optimizer_settings
    return update_costs_from_spec(graph, device, beside.bandwidth, optimizer, settings)


def lineage_entries(options: argparse.Namespace) -> list[LineageEntry]:
    """What `run` made of what."""
    from tightfit.stages.combine.optimizer_offload.plan import OUTPUTS

    outputs, settings = [options.out / name for name in OUTPUTS], options.optimizer_settings
    read = [*options.graph, *options.costs, options.machine]
    read += [options.updates] if options.updates is not None else []
    return [
        LineageEntry(
            outputs,
            read,
            {
                "budget": options.budget,
                "optimizer": options.optimizer or "",
                "microbatches": options.microbatches or [],
                "solver": options.solver,
                **({"limit": options.limit} if options.limit else {}),
                **{
                    name: ON_DEVICE
                    for name in ("parameters", "activations")
                    if getattr(options, name) == ON_DEVICE
                },
                **({"optimizer_settings": settings} if settings else {}),
            },
        )
    ]
