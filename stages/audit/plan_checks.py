"""Checks one plan against its schedule, module and measurement, and against the model's files."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TypeVar, cast

from tightfit.schemas import store
from tightfit.schemas.config import EAGER_FOLDER
from tightfit.schemas.costs import Costs, read_costs
from tightfit.schemas.frontier import Frontier, read_frontier
from tightfit.schemas.graph.fused_groups import count_executed_groups
from tightfit.schemas.graph.training_graph import Graph, has_fused_kernels, read_graph
from tightfit.schemas.measurement import read_measurement
from tightfit.schemas.operation_timeline import read_operation_timeline
from tightfit.schemas.optimizer_plan import MICROBATCH_SCHEDULE, OPTIMIZER_OFFLOAD
from tightfit.schemas.package_manifest import module_digest
from tightfit.schemas.plan import (
    STEP_OVERLAP_VERSION,
    CompetingPlan,
    Plan,
    StepOverlap,
    optimality_gap,
    read_plan,
)
from tightfit.schemas.schedule import (
    ScheduleStep,
    find_sample_graph,
    read_schedule,
    read_small_schedule,
    schedule_link,
    schedule_optimizer_plan,
)
from tightfit.schemas.sequence import read_sequence
from tightfit.stages.audit.joint_budget import expected_budget_total
from tightfit.stages.audit.module_checks import check_modules
from tightfit.stages.audit.size_checks import check_dynamic_plan, check_measured_sizes
from tightfit.stages.simulate.caching_allocator import AllocatorBytes
from tightfit.stages.simulate.cuda_memory import simulate_cuda_memory
from tightfit.stages.simulate.cyclic_schedule import CycleResult, simulate_any
from tightfit.stages.simulate.simulate import simulate, sum_microbatches
from tightfit.stages.simulate.stream_check import check_streams
from tightfit.util.budget import MIN_BUDGET, NO_BUDGET, parse_budget
from tightfit.util.errors import TightfitError


def check_streams_file(
    path: Path, plan: Plan, sequence: Path | None, streams: Path
) -> Iterator[str]:
    """What is wrong with the streams of a plan, a sentence each; raises ScheduleError where they
    could not run so."""
    if sequence is not None:
        ours, theirs = (
            store.read_header(file).metadata.get("chain") for file in (streams, sequence)
        )
        if ours != theirs:
            yield f"{streams}: is of another chain than {sequence.name}"
            return
    steps = read_operation_timeline(streams)
    if sequence is not None and read_sequence(sequence) != [step.operation for step in steps]:
        yield f"{streams}: has other operations than {sequence.name}"
        return
    found, moved = check_streams(steps), plan.transfers
    if not plan.feasible:
        if steps:
            yield f"{streams}: has {len(steps)} steps, though the plan is infeasible"
        return
    if moved is None:
        yield f"{path}: says nothing of the transfers in {streams.name}"
        return
    for name, claimed, played in (
        ("time", plan.time, found.seconds),
        ("offloaded_bytes", moved.offloaded_bytes, found.left),
        ("prefetched_bytes", moved.prefetched_bytes, found.returned),
        ("host_peak", moved.host_peak, found.host_peak),
        ("wait_seconds", moved.wait_seconds, found.waited),
    ):
        if claimed != played:
            yield f"{path}: {name} is {claimed}, where the streams come to {played}"
    if plan.peak is not None and plan.peak < found.live:
        yield f"{path}: peak is {plan.peak}, where {found.live} bytes are there in the streams"


T = TypeVar("T")


@dataclass(frozen=True)
class PlanFiles:
    """A plan and what belongs to it; None for what is not there or damaged.

    Graph, costs and frontier are the nearest in the folders above the plan; where these are of
    fused kernels and the plan is one of eager's, those that were planned beside them. The plan was
    chosen from what is `given`, the strategy's own plans or the frontier. `rival` is that of the
    other kernels.
    """

    path: Path
    plan: Plan
    graph: Path | None
    costs: Path | None
    frontier: Path | None
    given: Path | None
    rival: Path | None
    schedule: Path | None
    sequence: Path | None
    streams: Path | None
    module: Path | None
    measurement: Path | None

    @classmethod
    def of(cls, path: Path, damaged: Collection[Path]) -> PlanFiles:
        """What belongs to a plan's file; `damaged` files count as absent."""

        def whole(place: Path) -> Path | None:
            return place if place.exists() and place not in damaged else None

        def above(folder: Path, name: str) -> Path | None:
            places = (above / name for above in (folder, *folder.parents))
            near = next((place for place in places if place.exists()), None)
            return None if near is None or near in map(Path.absolute, damaged) else near

        def given(folder: Path) -> Path | None:
            own = (folder.parent / "candidates.arrow").exists()
            return above(folder, "candidates.arrow" if own else "frontier.arrow")

        plan, folder = read_plan(path), path.absolute().parent
        graph, schedule = above(folder, "graph.arrow"), whole(path.with_name("schedule.arrow"))
        own, other = _search_folders(folder, plan, graph)
        if plan.strategy == OPTIMIZER_OFFLOAD and graph is not None and schedule is not None:
            own = find_sample_graph(schedule, graph).parent
        return cls(
            path=path,
            plan=plan,
            graph=above(own, "graph.arrow"),
            costs=above(own, "costs.arrow"),
            frontier=above(own, "frontier.arrow"),
            given=given(own),
            rival=None if other is None else given(other),
            schedule=schedule,
            sequence=whole(path.with_name("sequence.arrow")),
            streams=whole(path.with_name("streams.arrow")),
            module=whole(path.with_name("module")),
            measurement=whole(path.with_name("measurement.arrow")),
        )


def _search_folders(folder: Path, plan: Plan, graph: Path | None) -> tuple[Path, Path | None]:
    """The folder that a plan's graph, costs and frontier are looked for from, and that of the plan
    of the other kernels, where there are such; `graph` is the nearest one."""
    if graph is None or plan.competing_plan is None:
        return folder, None
    model = graph.parent
    if model.name == EAGER_FOLDER and not has_fused_kernels(graph):
        return folder, model.parent / folder.relative_to(model)
    beside = model / EAGER_FOLDER / folder.relative_to(model)
    return (beside, folder) if plan.kernels == "eager" else (folder, beside)


def check_plan_files(files: PlanFiles) -> Iterator[str]:
    """What is wrong with a plan and what was made of it, a sentence each."""
    for check in (
        _check_budget,
        _check_frontier_point,
        _check_kernels,
        _check_schedule,
        _check_streams,
        check_modules,
        _check_measurement,
    ):
        try:
            yield from check(files)
        except TightfitError as error:
            text = str(error)
            about = files.path.parent
            yield text if text.startswith(str(about)) else f"{files.path}: {text}"


def _check_budget(files: PlanFiles) -> Iterator[str]:
    """The plan is within its budget, and the budget is what its words mean."""
    plan, fixed = files.plan, files.plan.baseline
    if plan.feasible and (plan.peak is None or plan.time is None):
        yield f"{files.path}: is {plan.status} without a peak and a time"
    if not plan.feasible and not (plan.peak is None and plan.time is None):
        yield f"{files.path}: is infeasible and has a peak or a time all the same"
    if plan.peak is not None and plan.budget_bytes is not None and plan.peak > plan.budget_bytes:
        yield f"{files.path}: the peak {plan.peak} is above the budget of {plan.budget_bytes} bytes"
    if plan.feasible and plan.gpu is not None and plan.budget_total is not None:
        reserved = plan.gpu.steady_reserved
        if reserved > plan.budget_total:
            yield f"{files.path}: reserves {reserved} bytes, above its {plan.budget_total}"
    if is_chain_plan(files):
        return
    there = fixed.bytes_before_step
    total = plan.budget_total if plan.budget == MIN_BUDGET else None
    if plan.strategy == OPTIMIZER_OFFLOAD:
        total = _step_budget_bytes(plan)
    elif plan.budget not in (NO_BUDGET, MIN_BUDGET):
        known = expected_budget_total(files.path, plan)
        total = plan.budget_total if known is None else known
    if plan.budget_total != total:
        yield f"{files.path}: the budget {plan.budget} is {total} bytes, not {plan.budget_total}"
    own = None if plan.budget_total is None else plan.budget_total - there
    if plan.budget_bytes != own:
        yield f"{files.path}: the budget leaves {own} bytes to the step, not {plan.budget_bytes}"


def _step_budget_bytes(plan: Plan) -> int | None:
    """The bytes of the budget of a whole step where that is a size; else those that the plan says:
    the least and shares are counted from what the step's search began with."""
    size = None if plan.budget == MIN_BUDGET else parse_budget(plan.budget).size
    return plan.budget_total if size is None else size


def _check_frontier_point(files: PlanFiles) -> Iterator[str]:
    """The plan is the point that its budget takes of what it was chosen from, or a faster one; on a
    GPU it may be slower, for what it reserves. None is infeasible that the frontier has a point
    for."""
    for path in dict.fromkeys((files.given, files.frontier)):
        if path is not None:
            yield from _check_against_frontier(
                files, read_cached(read_frontier, path), path == files.given
            )


def _check_against_frontier(files: PlanFiles, frontier: Frontier, given: bool) -> Iterator[str]:
    """What is wrong with a plan beside a frontier, which it was chosen from where that was
    `given`."""
    plan = files.plan
    if plan.strategy != frontier.strategy:
        yield f"{files.path}: is a plan of {plan.strategy}, the frontier one of {frontier.strategy}"
        return
    budget = frontier.points[0].peak if plan.budget_bytes is None else plan.budget_bytes
    chosen = None if plan.gpu is not None else frontier.within(budget)
    if chosen is not None and not plan.feasible:
        yield f"{files.path}: is infeasible, but a point of the frontier fits the budget"
    if given and chosen is not None and plan.time is not None:
        if plan.time > chosen.seconds:
            yield f"{files.path}: takes {plan.time} s, its point of the frontier {chosen.seconds}"
        if plan.time == chosen.seconds and plan.peak != chosen.peak:
            yield f"{files.path}: has the peak {plan.peak}, its point of the frontier {chosen.peak}"
    if (frontier.keep_all_seconds, frontier.keep_all_peak) != (
        plan.keep_all.time,
        plan.keep_all.peak,
    ):
        yield f"{files.path}: has another keep_all than the frontier"


def _check_kernels(files: PlanFiles) -> Iterator[str]:
    """The plan runs the kernels of its graph, and those of the other kernels are no better."""
    plan, rival = files.plan, files.plan.competing_plan
    if plan.kernels is None or files.graph is None:
        return
    if plan.kernels != ("fused" if has_fused_kernels(files.graph) else "eager"):
        yield f"{files.path}: is a plan of {plan.kernels} kernels, {files.graph} is of others"
    if rival is None:
        return
    if rival.kernels == plan.kernels:
        yield f"{files.path}: was compared with a plan of the same kernels"
    beside = files.graph.parent in files.path.absolute().parents and plan.kernels == "eager"
    if plan.budget != NO_BUDGET and not beside and _is_worse(plan, rival):
        yield f"{files.path}: is worse than the plan of {rival.kernels} kernels that it names"
    if files.rival is not None and plan.gpu is None:
        yield from _check_rival(files.path, plan, rival, read_cached(read_frontier, files.rival))


def _check_rival(path: Path, plan: Plan, rival: CompetingPlan, frontier: Frontier) -> Iterator[str]:
    """What a plan says of the other kernels is what their frontier says, or better."""
    total = plan.baseline.bytes_before_step + frontier.keep_all_peak
    if rival.keep_all_total != total:
        said = f"takes {total} bytes, not {rival.keep_all_total}"
        yield f"{path}: keeping everything with {rival.kernels} kernels {said}"
    budget = frontier.points[0].peak if plan.budget_bytes is None else plan.budget_bytes
    chosen = frontier.within(budget)
    if chosen is not None and (rival.time is None or rival.time > chosen.seconds):
        said = f"a plan of theirs takes {chosen.seconds} s, not {rival.time}"
        yield f"{path}: with {rival.kernels} kernels {said}"


def _is_worse(plan: Plan, rival: CompetingPlan) -> bool:
    """Whether a plan takes longer than its rival, or alone does not fit; of two as fast it is the
    one of fused kernels that is taken."""
    if plan.time is None or rival.time is None:
        return plan.time is None and rival.time is not None
    return plan.time > rival.time or (plan.time == rival.time and plan.kernels == "eager")


def _check_schedule(files: PlanFiles) -> Iterator[str]:
    """The simulator finds what the plan and the schedule itself say."""
    if is_chain_plan(files):
        return
    if files.schedule is None:
        if not files.path.with_name("schedule.arrow").exists():
            yield f"{files.path}: there is no schedule.arrow beside it"
        return
    steps = read_schedule(files.schedule)
    if not files.plan.feasible:
        if steps:
            yield f"{files.schedule}: has {len(steps)} steps, though the plan is infeasible"
        return
    if files.graph is None or files.costs is None:
        lacking = "graph.arrow" if files.graph is None else "costs.arrow"
        yield f"{files.schedule}: cannot be simulated without a whole {lacking}"
        return
    graph, costs = read_cached(read_graph, files.graph), read_cached(read_costs, files.costs)
    if (
        store.read_header(files.schedule).metadata.get("graph")
        != store.read_header(files.graph).digest
    ):
        yield f"{files.schedule}: is the schedule of another graph than {files.graph.name}"
        return
    yield from _check_simulation(files, graph, costs, steps)


def _check_simulation(
    files: PlanFiles, graph: Graph, costs: Costs, steps: list[ScheduleStep]
) -> Iterator[str]:
    plan = files.plan
    try:
        path = cast(Path, files.schedule)
        link, updates = schedule_link(path), schedule_optimizer_plan(path)
        played, cycle = simulate_any(graph, costs, steps, link, updates)
        adding = None
        if updates is not None and updates.microbatches > 1:
            other = path.with_name(MICROBATCH_SCHEDULE)
            adds = schedule_optimizer_plan(other)
            adding = simulate(graph, costs, read_schedule(other), link=link, updates=adds)
        whole = sum_microbatches(played, adding, 1 if updates is None else updates.microbatches)
    except TightfitError as error:
        yield f"{files.schedule}: cannot be run, {error}"
        return
    for index, (written, step) in enumerate(zip(steps, played.steps, strict=True)):
        if written != step:
            yield f"{files.schedule}: step {index} has other figures than the simulator"
            break
    for name, claimed, found in (
        ("peak", plan.peak, whole.peak),
        ("time", plan.time, whole.seconds),
        ("recomputed", plan.recomputed, played.repeated),
        ("transfers", plan.transfers, whole.transfers),
        ("recomputed_time", plan.recomputed_time, played.repeated_seconds),
        ("overlap", plan.overlap, _step_overlap(cycle)),
    ):
        if claimed != found:
            yield f"{files.path}: {name} is {claimed}, where the simulator finds {found}"
    if plan.kernels is not None:
        run = count_executed_groups(graph, (step.action for step in steps))
        if (plan.groups, plan.compiled) != run:
            yield (
                f"{files.path}: runs {plan.groups} groups as {plan.compiled} kernels, where the "
                f"schedule runs {run[0]} as {run[1]}"
            )
    second = read_small_schedule(path)
    yield from check_dynamic_plan(files.path, plan, graph, costs, steps, second)
    yield from _check_gpu_memory(files, graph, costs, steps)
    if plan.lower_bound is not None and plan.time is not None:
        gap = optimality_gap(plan.time, plan.lower_bound)
        if plan.gap != gap:
            yield f"{files.path}: gap is {plan.gap}, where time and lower_bound make it {gap}"


def _step_overlap(cycle: CycleResult | None) -> StepOverlap | None:
    """What a plan says of its cycle."""
    if cycle is None:
        return None
    peaks = cycle.first_peak, cycle.steady_peak, cycle.closing_peak
    return StepOverlap(STEP_OVERLAP_VERSION, *peaks)


def _check_gpu_memory(
    files: PlanFiles, graph: Graph, costs: Costs, steps: list[ScheduleStep]
) -> Iterator[str]:
    """What the schedule takes of a GPU is what the plan says."""
    said = files.plan.gpu
    if said is None:
        if costs.device.type == "cuda" and files.plan.strategy != OPTIMIZER_OFFLOAD:
            yield f"{files.path}: does not say what it takes of the GPU"
        return
    found = simulate_cuda_memory(graph, costs, steps, said.arena)
    claimed = AllocatorBytes(said.requested, said.allocated, said.reserved)
    if (claimed, said.steady_reserved, said.workspaces) != (
        found.most,
        found.renewed,
        found.workspaces,
    ):
        yield f"{files.path}: takes {claimed} of a GPU, where the schedule takes {found.most}"


def _check_measurement(files: PlanFiles) -> Iterator[str]:
    """The measurement is of this plan and of the module beside it."""
    if files.measurement is None:
        return
    found, plan = read_measurement(files.measurement), files.plan
    gpu, sent = plan.gpu, plan.transfers
    for name, measured, planned in (
        ("strategy", found.strategy, plan.strategy),
        ("budget", found.budget, plan.budget),
        ("budget_bytes", found.budget_bytes, plan.budget_bytes),
        ("budget_total", found.budget_total, plan.budget_total),
        ("predicted_peak", found.predicted_peak, plan.peak),
        ("predicted_time", found.predicted_time, plan.time),
        ("predicted_allocated", found.predicted_allocated, None if gpu is None else gpu.allocated),
        ("predicted_reserved", found.predicted_reserved, None if gpu is None else gpu.reserved),
        (
            "predicted_wait_seconds",
            found.predicted_wait_seconds,
            None if sent is None else sent.wait_seconds,
        ),
    ):
        if measured != planned:
            yield f"{files.measurement}: {name} is {measured}, in plan.json {planned}"
    yield from check_measured_sizes(files.measurement, plan, found)
    named = store.read_header(files.measurement).metadata.get("module", "")
    if not named:
        yield f"{files.measurement}: does not name the module that it measured"
    elif files.module is None:
        yield f"{files.measurement}: the module that it measured is not there"
    elif named != module_digest(files.module):
        yield f"{files.measurement}: measured another module than the one beside it"


def _check_streams(files: PlanFiles) -> Iterator[str]:
    """The streams of a chain with a link come to what the plan says."""
    if files.streams is not None:
        yield from check_streams_file(files.path, files.plan, files.sequence, files.streams)
    elif (
        files.plan.transfers is not None
        and is_chain_plan(files)
        and not files.path.with_name("streams.arrow").exists()
    ):
        yield f"{files.path}: there is no streams.arrow beside it"


def is_chain_plan(files: PlanFiles) -> bool:
    """A chain that came as a file is planned as a sequence, without a schedule: no kernels run."""
    return files.plan.kernels is None


def read_cached(read: Callable[[Path], T], path: Path) -> T:
    """Reads a file that several plans share, once while it stays as it is."""
    return _read_cached_file(read, path, path.stat().st_mtime_ns)  # type: ignore[return-value]


@lru_cache(maxsize=4)
def _read_cached_file(read: Callable[[Path], object], path: Path, changed: int) -> object:
    return read(path)
