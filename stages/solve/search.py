"""The options of one block: a grid of (peak, save) limits, solved from the loosest on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from tightfit.schemas.block_options import BlockOption
from tightfit.schemas.graph.planning_graph import PlanningGraph
from tightfit.schemas.link import HostLink
from tightfit.stages.simulate.block import BlockCost, BlockSchedule, simulate_block
from tightfit.stages.solve.checkmate import BlockCheckmate, choose_stages
from tightfit.stages.solve.heuristics import (
    cheap_recompute_runs,
    droppable_storages,
    forward_nodes,
    keep_all_run,
    offloadable_storages,
    output_only_nodes,
    quick_recompute_runs,
)
from tightfit.stages.solve.pulp_solver import TOLERANCE, PulpLimits, solve
from tightfit.util.solver_engines import BlockSolver, SolverEngine


@dataclass(frozen=True)
class OptionGrid:
    """How densely and how long a block's options are searched.

    `peaks` x `saves` pairs of limits are solved. A share `gap` of a run's seconds need not be
    gained. A solve takes at most `nodes` of the search tree and `checks` of HiGHS, and `seconds` as
    the last guard. Programs of up to `variables` binary variables may recompute any node, larger
    ones forward nodes only. There is no ILP beyond `largest`, where a solve takes most of a minute
    and a block a quarter of an hour: the local search finds there what the ILPs would.
    """

    peaks: int = 4
    saves: int = 6
    gap: float = 0.003
    nodes: int = 300
    checks: int = 300
    seconds: float = 300.0
    variables: int = 500
    largest: int = 800


@dataclass(frozen=True)
class CandidateRun:
    """A run with its figures, how it was found and what ended the search for it."""

    label: str
    run: BlockSchedule
    figures: BlockCost
    limit: str = ""


@dataclass(frozen=True)
class RunBound:
    """No run within `peak` and `save` takes less than `seconds` (infinite: there is none)."""

    peak: int
    save: int
    seconds: float


@dataclass(frozen=True)
class SolvedBlock:
    """The options of a block, and how many of its solves the clock ended."""

    options: list[BlockOption]
    clock: int


def search_block(
    digest: str,
    problem: PlanningGraph,
    engine: BlockSolver,
    grid: OptionGrid,
    link: HostLink | None = None,
) -> SolvedBlock:
    """All options of a block worth having, by number: 0 saves nothing, the others from the most
    saved to the least. For a link they say what of it may leave; one without a bandwidth changes
    nothing. The same arguments give the same options unless the clock ended a solve."""
    found = [_simulate_run(problem, "keep everything", keep_all_run(problem))]
    found += [_simulate_run(problem, label, run) for label, run in cheap_recompute_runs(problem)]
    if link is not None and link.bandwidth > 0:
        found += [
            _simulate_run(problem, label, run) for label, run in quick_recompute_runs(problem, link)
        ]
    bounds = [RunBound(_max_bytes(found), _max_bytes(found), found[0].figures.seconds)]
    clock = 0
    if engine != "none" and droppable_storages(problem):
        clock = _search_grid(problem, engine, grid, found, bounds)
    options = [_build_option(digest, problem, entry, bounds) for entry in _pareto_runs(found)]
    if link is not None and link.bandwidth > 0:
        options = [_add_offloads(problem, option) for option in options]
    numbered = enumerate([_save_nothing_option(digest, problem), *options])
    return SolvedBlock([replace(option, option=number) for number, option in numbered], clock)


def _simulate_run(
    problem: PlanningGraph, label: str, run: BlockSchedule, limit: str = ""
) -> CandidateRun:
    return CandidateRun(label, run, simulate_block(problem, run), limit)


def _max_bytes(found: list[CandidateRun]) -> int:
    return max(max(entry.figures.peak, entry.figures.save) for entry in found)


def _search_grid(
    problem: PlanningGraph,
    engine: SolverEngine,
    grid: OptionGrid,
    found: list[CandidateRun],
    bounds: list[RunBound],
) -> int:
    """Adds what the ILPs of the grid find, and the bounds they prove; returns how many of them the
    clock ended."""
    name, stages = choose_stages(problem, grid.variables)
    if sum(len(stage.candidates) for stage in stages) > grid.largest:
        return 0
    clock = 0
    slack = grid.gap * found[0].figures.seconds
    base = sum(node.least_seconds for node in problem.nodes)
    for peak, save in grid_points(problem, grid, found):
        known = _fastest_run(found, peak, save)
        if known and known.figures.seconds - _lower_bound(bounds, peak, save) <= slack:
            continue
        if _lower_bound(bounds, peak, save) == float("inf"):
            continue
        ilp = BlockCheckmate(problem, stages, peak, save)
        if not ilp.feasible:
            bounds.append(RunBound(peak, save, float("inf")))
            continue
        if known:
            ilp.start_from(known.run)
        limits = PulpLimits(slack / ilp.scale, grid.nodes, grid.checks, grid.seconds)
        result = solve(ilp.program, engine, limits, warm=known is not None)
        clock += result.limit == "clock"
        bounds.append(RunBound(peak, save, base + result.bound * ilp.scale))
        if result.outcome == "solved":
            label = f"ILP ({name}), peak {peak}, save {save}"
            found.append(_simulate_run(problem, label, ilp.solution(), result.limit))
    return clock


def grid_points(
    problem: PlanningGraph, grid: OptionGrid, found: list[CandidateRun]
) -> Iterator[tuple[int, int]]:
    """Pairs of limits (peak, save), loosest first.

    Peaks are evenly spaced from what single nodes need to what keeping everything needs, saves
    from the least to the most that can be saved within the peak (Z 2.6.0.0.1).
    """
    highest, lowest = found[0].figures.peak, min_block_peak(problem)
    most = found[0].figures.save
    least = min(entry.figures.save for entry in found)
    for peak in _spread_values(highest, lowest, grid.peaks):
        for save in _spread_values(max(min(most, peak), least), least, grid.saves):
            yield peak, save


def _spread_values(high: int, low: int, count: int) -> list[int]:
    if count == 1:
        return [high]
    return [high - (high - low) * step // (count - 1) for step in range(count)]


def min_block_peak(problem: PlanningGraph) -> int:
    """Bytes that some node needs by itself: its inputs, its own peak and the gradients before it.

    No run has a lower peak.
    """
    least = 0
    staying = 0
    for position, node in enumerate(problem.nodes):
        if position != problem.loss:
            inputs = {s for s in node.inputs if not problem.storages[s].stays}
            own = sum(problem.storages[storage].bytes for storage in inputs) + node.least_peak
            least = max(least, own + staying)
        staying += sum(problem.storages[s].bytes for s in node.outputs if problem.storages[s].stays)
    return least


def _fastest_run(found: list[CandidateRun], peak: int, save: int) -> CandidateRun | None:
    fitting = [e for e in found if e.figures.peak <= peak and e.figures.save <= save]
    return min(fitting, key=lambda entry: entry.figures.seconds, default=None)


def _lower_bound(bounds: list[RunBound], peak: int, save: int) -> float:
    """The best bound that holds within limits: those of looser limits do."""
    return max((b.seconds for b in bounds if b.peak >= peak and b.save >= save), default=0.0)


def _pareto_runs(found: list[CandidateRun]) -> list[CandidateRun]:
    """The runs that no other one beats or equals in save, both peaks and seconds."""

    def measures(entry: CandidateRun) -> tuple[float, ...]:
        figures = entry.figures
        return (figures.save, figures.forward_peak, figures.backward_peak, figures.seconds)

    kept: list[CandidateRun] = []
    for entry in sorted(found, key=lambda entry: (entry.figures.seconds, measures(entry))):
        own = measures(entry)
        if not any(
            all(a <= b for a, b in zip(measures(other), own, strict=True)) for other in kept
        ):
            kept.append(entry)
    return sorted(kept, key=lambda entry: (-entry.figures.save, measures(entry)))


def _build_option(
    digest: str, problem: PlanningGraph, entry: CandidateRun, bounds: list[RunBound]
) -> BlockOption:
    figures = entry.figures
    lower = _lower_bound(bounds, figures.peak, figures.save)
    gap = max(0.0, 1 - lower / figures.seconds) if figures.seconds else 0.0
    spare = output_only_nodes(problem, entry.run)
    optimal = gap <= TOLERANCE
    return BlockOption(
        block=digest,
        option=0,
        label=entry.label,
        save=figures.save,
        forward_peak=figures.forward_peak,
        backward_peak=figures.backward_peak,
        forward_seconds=figures.forward_seconds,
        backward_seconds=figures.backward_seconds,
        output_seconds=sum(problem.nodes[position].form(True).seconds for position in spare),
        forward=list(entry.run.forward),
        backward=list(entry.run.backward),
        output_only=list(spare),
        status="optimal" if optimal else "feasible",
        gap=0.0 if optimal else gap,
        limit="" if optimal else entry.limit,
    )


def _add_offloads(problem: PlanningGraph, option: BlockOption) -> BlockOption:
    leaves = offloadable_storages(
        problem, BlockSchedule(tuple(option.forward), tuple(option.backward))
    )
    size = sum(problem.storages[storage].bytes for storage in leaves)
    return replace(option, leaves=leaves, leaving_bytes=size)


def _save_nothing_option(digest: str, problem: PlanningGraph) -> BlockOption:
    """The forward that keeps nothing but the output, and what running it again needs."""
    forward = forward_nodes(problem)
    states = problem.state_bytes * sum(problem.nodes[position].random for position in forward)
    figures = simulate_block(problem, BlockSchedule(forward, ()))
    spare = output_only_nodes(problem, BlockSchedule(forward, ()))
    return BlockOption(
        block=digest,
        option=0,
        label="save nothing",
        save=figures.save + states,
        forward_peak=figures.forward_peak + states,
        backward_peak=0,
        forward_seconds=figures.forward_seconds,
        backward_seconds=0.0,
        output_seconds=sum(problem.nodes[position].form(True).seconds for position in spare),
        forward=list(forward),
        backward=[],
        output_only=list(spare),
        status="optimal",
        gap=0.0,
    )
