"""The variants of a model's call, one for each shape of its samples, with their frontiers."""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from tightfit.api.multi_shape_module import call_signature
from tightfit.api.plan_result import ChosenPlan, FrontierEntry
from tightfit.api.stage_runner import PLANNING_LOCK, StageRunner
from tightfit.schemas.frontier import (
    Frontier,
    ParetoPoint,
    pareto_points,
    read_frontier,
    write_frontier,
)
from tightfit.schemas.lineage import write_lineage
from tightfit.schemas.plan import Plan
from tightfit.util.budget import MIN_BUDGET, NO_BUDGET, parse_plan_budget
from tightfit.util.child_process import ChildProcess
from tightfit.util.command_line import LineageEntry
from tightfit.util.errors import ConfigError, ModelError, TightfitError

if TYPE_CHECKING:
    from tightfit.api.stage_runner import StageRunner
    from tightfit.schemas.graph.training_graph import Graph
    from tightfit.stages.combine.memory_budget import BudgetAccounting
    from tightfit.stages.torch_utils.model_factory import BuiltModel, Sample


def partial_frontier(runner: StageRunner, graph: Path, costs: Path) -> Path | None:
    """The path of a frontier of what is known without the rest of the work: the strategy's
    plans before local search, the baselines, and what other strategies found for this step.

    None where there is none. An interruption of this leaves out what it had not come to.
    """
    place = runner.place(costs)
    found: list[Frontier] = []
    with contextlib.suppress(KeyboardInterrupt):
        found += _known_frontiers(place)
        for name in ("keep_all", "checkpoint_all", runner.strategy):
            found += _strategy_frontiers(name, graph, costs, place, runner)
    if not found:
        return None
    points: list[ParetoPoint] = [point for frontier in found for point in frontier.points]
    merged = replace(
        found[0],
        strategy=runner.strategy,
        points=pareto_points(points),
        optimal_in="",
        timed_out_solves=0,
        link=next((frontier.link for frontier in found if frontier.link is not None), None),
        dominated=[],
    )
    path = place / f"{runner.strategy}-interrupted" / "frontier.arrow"
    write_frontier(path, merged)
    settings = {"strategy": runner.strategy, "interrupted": True}
    write_lineage("combine", LineageEntry([path], [graph, costs, place / "blocks.arrow"], settings))
    return path


def _known_frontiers(place: Path) -> list[Frontier]:
    """The frontiers of other strategies that are there."""
    found = []
    for path in sorted(place.glob("*/frontier.arrow")):
        with contextlib.suppress(TightfitError):
            found.append(read_frontier(path))
    return found


def _strategy_frontiers(
    name: str, graph: Path, costs: Path, place: Path, runner: StageRunner
) -> list[Frontier]:
    """The frontier of a strategy's own plans, none where what it plans from is not there yet."""
    from tightfit.stages.combine.frontier_inputs import FrontierInputs
    from tightfit.stages.combine.strategies.strategy import load_strategy as strategy_of

    blocks, options = place / "blocks.arrow", runner.options(place)
    solved = options.exists()
    if not blocks.exists() or not (solved or name == "keep_all"):
        return []
    strategy = strategy_of(name)
    clusters = place / "hierarchy.arrow"
    given = FrontierInputs.read(
        *(graph, costs, blocks, options if solved else None),
        clusters if clusters.exists() else None,
        runner.machine if strategy.about.links else None,
        runner.engine,
    )
    if strategy.supports(given.step):
        return []
    return [given.frontier(strategy, replace(strategy.about, baseline=True))]


INTERRUPTED_MESSAGE = "interrupted, taking the best plan so far"
BEST_SO_FAR_NOTE = "; the best plan when its making was interrupted"


@dataclass(frozen=True)
class InputSpecialization:
    """Samples of one shape with the paths of their graph, costs and frontier, which may be that of
    the strategy's own plans; `more` is what is to be said of it."""

    built: BuiltModel
    graph: Path
    costs: Path
    path: Path
    frontier: Frontier
    more: str

    @classmethod
    def of(
        cls, runner: StageRunner, built: BuiltModel, written: str, traced: Path | None = None
    ) -> InputSpecialization:
        """Makes what is not in the store yet; the graph may be `traced` already."""
        graph = traced or runner.trace(built)
        if runner.fused_kernels is not None:
            graph = runner.fuse_graph(graph)
        return cls.with_frontier(runner, built, graph, runner.profile(built, graph), written)

    @classmethod
    def with_frontier(
        cls, runner: StageRunner, built: BuiltModel, graph: Path, costs: Path, written: str
    ) -> InputSpecialization:
        """Makes the frontier of a graph and its costs, where it is not in the store yet."""
        path, more = _frontier(runner, graph, costs, written)
        return cls(built, graph, costs, path, read_frontier(path), more)

    def bytes_of(self, written: str) -> int:
        """A budget as written, or the smallest that works, in bytes of the whole step."""
        return ChildProcess().call(partial(self._bytes_of, written))

    def _bytes_of(self, written: str) -> int:
        return _budget_accounting(self.graph, self.costs).budget(written, self.frontier)

    def made(self, runner: StageRunner, budget: str) -> ChosenPlan:
        """The plan for a budget; raises ConfigError where none fits."""
        return self.package_plan(runner, *self.chosen(runner, budget))

    def chosen(self, runner: StageRunner, budget: str, search: bool = True) -> tuple[Plan, Path]:
        """The plan for a budget, which may be infeasible, and its folder; without a `search` it is
        the frontier's. Where looking for a faster one is interrupted, it is that, too, if there is
        one; else the interruption is raised."""
        try:
            plan, point = runner.choose(self.graph, self.costs, self.path, budget, search)
        except KeyboardInterrupt:
            runner.progress.note(INTERRUPTED_MESSAGE)
            plan, point = runner.choose(self.graph, self.costs, self.path, budget, search=False)
            if not plan.feasible:
                raise
            return replace(
                plan, message=plan.message + ("" if self.more else BEST_SO_FAR_NOTE)
            ), point
        if not plan.feasible and not self.more:
            path = runner.frontier(self.graph, self.costs)
            if path != self.path:
                plan, point = runner.choose(self.graph, self.costs, path, budget)
        return plan, point

    def package_plan(
        self, runner: StageRunner, plan: Plan, point: Path, beside: tuple[Path, Path] | None = None
    ) -> ChosenPlan:
        """A plan with its package, which the plan in the second folder of `beside`, of the graph
        there, goes along with; raises ConfigError where it is infeasible."""
        if not plan.feasible:
            raise ConfigError(plan.message)
        package = runner.package(self.graph, point, beside)
        said = replace(plan, message=plan.message + self.more + _more_of(self.graph))
        known = partial(read_frontier, self.path)
        whole = partial(_full_frontier, runner, self.graph, self.costs)
        totals = partial(frontier_totals, self.graph, self.costs)
        return ChosenPlan.of(said, known if self.more else whole, totals, package)


def budget_text(budget: str | int | FrontierEntry) -> str:
    """A budget as text; raises ConfigError where it is none."""
    if isinstance(budget, FrontierEntry):
        return str(budget.budget)
    return parse_plan_budget(budget).text


def sample_shapes(built: BuiltModel) -> str:
    """The shapes of a sample's tensors."""
    import torch

    from tightfit.stages.torch_utils.model_factory import structure_leaves

    leaves = structure_leaves(built.samples[0])
    shapes = (str(tuple(leaf.shape)) for leaf in leaves if isinstance(leaf, torch.Tensor))
    return ", ".join(shapes) + (" with a mask of not only ones" if built.mixed else "")


def _more_of(graph: Path) -> str:
    """What is to be said of dynamic shapes, where the forward asks whether an input is all ones,
    and of checkpoints that give no gradients."""
    from tightfit.schemas.graph.training_graph import read_graph
    from tightfit.stages.generate.graph_guards import (
        checkpoints_without_gradients,
        mask_guard_names,
    )
    from tightfit.stages.trace.activation_checkpoints import missing_gradient_message

    said = {
        "all_ones_inputs": "it takes calls in which {} holds only ones",
        "not_all_ones_inputs": "it takes calls in which {} does not hold only ones",
        "all_ones_samples": "{} holds only ones in the sample, where the model itself takes a "
        "shorter way: assume_all_ones_masks=True plans that one, without it eager may "
        "differ in last bits and memory",
        "other_masks": "where {} holds only ones the model itself takes a shorter way, which may "
        "differ in last bits and memory",
    }
    traced = read_graph(graph)
    masks = [
        said[name].format(" and ".join(names)) for name, names in mask_guard_names(traced).items()
    ]
    dynamic = traced.dynamic
    return "".join(
        f"; {clause}"
        for clause in [
            *([] if dynamic is None else [f"it takes calls with {dynamic.describe()}"]),
            *masks,
            *map(missing_gradient_message, checkpoints_without_gradients(traced)),
        ]
    )


def _full_frontier(runner: StageRunner, graph: Path, costs: Path) -> Frontier:
    """The whole frontier, made unless it is there."""
    with (
        PLANNING_LOCK,
        runner.progress.show_stages("trace", "profile", "select", "generate", "check"),
    ):
        return read_frontier(runner.frontier(graph, costs))


def _budget_accounting(graph: Path, costs: Path) -> BudgetAccounting:
    """What budgets count for a graph and its costs."""
    from tightfit.schemas.costs import read_costs
    from tightfit.schemas.graph.training_graph import read_graph
    from tightfit.stages.combine.memory_budget import BudgetAccounting
    from tightfit.stages.simulate.planning_graph import build_planning_graph

    traced, paid = read_graph(graph), read_costs(costs)
    return BudgetAccounting.of_step(traced, paid, build_planning_graph(traced, paid))


def frontier_totals(graph: Path, costs: Path, frontier: Frontier) -> list[int]:
    """What each point of a frontier takes, as budgets count it."""
    in_all = _budget_accounting(graph, costs)
    return [in_all.of(point) for point in frontier.points]


def _frontier(runner: StageRunner, graph: Path, costs: Path, written: str) -> tuple[Path, str]:
    """The frontier, and what is to be said of it; only for the least budget it is the whole one.
    Where making it is interrupted, it is that of what is known so far, if a plan of it fits; else
    the interruption is raised."""
    try:
        return runner.frontier(graph, costs, given=written not in (MIN_BUDGET, NO_BUDGET)), ""
    except KeyboardInterrupt:
        from tightfit.schemas.costs import read_costs
        from tightfit.schemas.graph.training_graph import read_graph
        from tightfit.stages.combine.select_plan import select_plan
        from tightfit.stages.simulate.planning_graph import build_planning_graph

        runner.progress.note(INTERRUPTED_MESSAGE)
        known = partial_frontier(runner, graph, costs)
        if known is None or written == MIN_BUDGET:
            raise
        traced, paid = read_graph(graph), read_costs(costs)
        best = read_frontier(known)
        if select_plan(traced, paid, build_planning_graph(traced, paid), best, written)[1] is None:
            raise
    return known, BEST_SO_FAR_NOTE


_MAX_COMBINED_MASKS = 2
"""With more masks than that, not every choice of those that are ones has a plan."""
TracedSamples = tuple["BuiltModel", Path]
"""Samples with the path of their graph."""


def specialize_masks(runner: StageRunner, given: Sequence[BuiltModel]) -> list[TracedSamples]:
    """The samples with their graphs: where the forward asks whether masks are all ones, and goes
    another way for those, samples of either kind, made of the given ones where none is.

    `given` has samples of one shape together, and apart where not the same inputs are ones. Raises
    ModelError where the model cannot be captured.
    """
    shapes: dict[Hashable, list[BuiltModel]] = {}
    for built in given:
        shapes.setdefault(call_signature(*built.samples[0]), []).append(built)
    return [traced for alike in shapes.values() for traced in _mask_specializations(runner, alike)]


def _mask_specializations(runner: StageRunner, alike: Sequence[BuiltModel]) -> list[TracedSamples]:
    """The same for the samples of one shape."""
    from tightfit.stages.generate.graph_guards import guarded_mask_leaves as masks_of
    from tightfit.stages.torch_utils.input_masks import all_ones_leaves

    together = [sample for built in alike for sample in built.samples]
    general = replace(alike[0], samples=together, ones=False)
    try:
        graph = runner.trace_graph(general)
    except ModelError:
        if not any(map(all_ones_leaves, alike)):
            raise
        return [(built, runner.trace(built)) for built in alike]
    masks = masks_of(graph)
    if not masks:
        return [(general, runner.store_graph(graph))]
    found: list[TracedSamples] = []
    for built, ones in _group_by_ones(alike, masks):
        if not ones:
            found.append((built, runner.store_graph(_with_mask_guards(graph, masks))))
            continue
        try:
            shorter = runner.trace_graph(built)
        except ModelError:
            return [(general, runner.store_graph(graph))]
        if replace(shorter, guards=graph.guards) == graph:
            return [(general, runner.store_graph(graph))]
        found.append((built, runner.store_graph(shorter)))
    return found


def _group_by_ones(
    alike: Sequence[BuiltModel], masks: Sequence[int]
) -> Iterator[tuple[BuiltModel, tuple[int, ...]]]:
    """The samples by the masks among their leaves that are ones, the given ones first, then those
    that are made of the first one."""
    from tightfit.stages.torch_utils.input_masks import all_ones_leaves, replace_masks

    groups: dict[tuple[int, ...], list[Sample]] = {}
    for built in alike:
        own = set(all_ones_leaves(built))
        ones = tuple(leaf for leaf in masks if leaf in own)
        groups.setdefault(ones, []).extend(built.samples)
    counts = range(len(masks), -1, -1) if len(masks) <= _MAX_COMBINED_MASKS else (len(masks), 0)
    for ones in (ones for count in counts for ones in itertools.combinations(masks, count)):
        groups.setdefault(ones, [replace_masks(alike[0].samples[0], masks, ones)])
    for ones, samples in groups.items():
        mixed = tuple(leaf for leaf in masks if leaf not in ones)
        yield replace(alike[0], samples=samples, ones=True, mixed=mixed), ones


def _with_mask_guards(graph: Graph, masks: Sequence[int]) -> Graph:
    """A graph for masks of any contents as one for those that are not all ones."""
    guards = json.loads(graph.guards) | {"all_ones_samples": [], "not_all_ones_inputs": list(masks)}
    return replace(graph, guards=json.dumps(guards))
