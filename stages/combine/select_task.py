"""Chooses the plan for a budget from a frontier, or from two of other kernels, and writes it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from tightfit.stages.combine.frontier_files import FrontierFiles
from tightfit.util.budget import MIN_BUDGET, NO_BUDGET, parse_budget
from tightfit.util.command_line import LineageEntry
from tightfit.util.errors import ConfigError
from tightfit.util.progress import StageProgress
from tightfit.util.solver_engines import HIGHS_ENGINE, SolverEngine

if TYPE_CHECKING:
    from tightfit.schemas.frontier import Frontier
    from tightfit.schemas.link import HostLink
    from tightfit.schemas.plan import KernelKind, Plan
    from tightfit.schemas.schedule import ScheduleStep
    from tightfit.schemas.sequence import ChainOperation

OUTPUT_FILES = ("sequence.arrow", "schedule.arrow", "plan.json")
FAR_GAP = 0.05
"""The gap from which on a plan that was found from own plans is compared with one that is found
from the whole frontier."""

JOINT_NOTE = (
    "; the budget is one for all samples: what fits all is the largest of their smallest budgets"
)
"""What is said of a sample that a joint budget is too small for."""


@dataclass(frozen=True)
class _SelectedPlan:
    """A plan with what is written of it; `graph` is the digest of its graph, and `small` the
    schedule of a second plan for small sizes of calls."""

    plan: Plan
    sequence: list[ChainOperation]
    steps: list[ScheduleStep]
    graph: str
    link: HostLink | None
    small: Sequence[ScheduleStep] = ()

    def write(self, folder: Path) -> None:
        """Writes all of it."""
        from tightfit.schemas.plan import write_plan
        from tightfit.schemas.schedule import write_schedule
        from tightfit.schemas.sequence import write_sequence

        write_sequence(folder / OUTPUT_FILES[0], self.sequence)
        own = (self.steps, self.graph, self.link)
        write_schedule(folder / OUTPUT_FILES[1], *own, small=self.small)
        write_plan(folder / OUTPUT_FILES[2], self.plan)


@dataclass(frozen=True)
class SelectionRequest:
    """What a plan is chosen from, for a budget: a frontier, and what the whole one is made of where
    it is of the strategy's own plans. Without a `search` it is the frontier's. `joint` are the
    keep-all plans of samples of several shapes that share the bytes of one budget: a share is that
    of the sample for which it is the most."""

    graph: Path
    costs: Path
    frontier: Path
    budget: str
    makings: FrontierFiles | None = None
    engine: SolverEngine = HIGHS_ENGINE
    search: bool = True
    joint: tuple[Path, ...] = ()

    @property
    def files(self) -> list[Path]:
        """All that is read."""
        made = self.makings
        more = () if made is None else (made.blocks, made.options, made.hierarchy, made.machine)
        given = [path for path in more if path is not None]
        return [self.graph, self.costs, self.frontier, *given, *self.joint]

    def joint_total(self) -> int | None:
        """The bytes of the budget of all samples, None for the budget of this one alone. Raises
        ConfigError if the samples are of models with other parameters."""
        from tightfit.schemas.plan import joint_budget_total, read_plan

        if not self.joint:
            return None
        plans = [*map(read_plan, self.joint)]
        sizes = sorted({plan.baseline.parameters for plan in plans})
        if len(sizes) > 1:
            raise ConfigError(
                f"samples of one joint budget are of one model, and these have {sizes[0]:,} and "
                f"{sizes[-1]:,} bytes of parameters: leave out of samples what makes another model"
            )
        return joint_budget_total(parse_budget(self.budget), plans)

    def read_frontier(self) -> Frontier:
        """The frontier of the file. Raises ConfigError where it is of another graph, ArtifactError
        where what the whole one is made of cannot be read."""
        from tightfit.schemas.frontier import read_frontier
        from tightfit.schemas.graph.training_graph import GRAPH
        from tightfit.schemas.store import read
        from tightfit.stages.combine.strategies.strategy import load_strategy as strategy_of

        frontier, digest = read_frontier(self.frontier), read(self.graph, GRAPH).digest
        if frontier.graph != digest:
            raise ConfigError(f"{self.frontier}: was made for another graph than {self.graph}")
        strategy_of(frontier.strategy)
        if self.makings is not None:
            self.makings.check()
        return frontier

    def chosen(self, progress: StageProgress, total: int | None = None) -> _SelectedPlan:
        """The plan, or that from the whole frontier where this is faster: it is made, if it can
        be, where own plans lead to none, or to one whose gap is above `FAR_GAP`. `total` are the
        bytes of the budget where these are another's. Raises as `read_frontier` does."""
        frontier = self.read_frontier()
        found = self.choose_from(frontier, progress, total)
        if self.makings is None or not self.search or _is_near_bound(found.plan):
            return found
        whole = self.makings.frontier(frontier.strategy, progress)
        further = self.choose_from(whole, progress, total)
        slower = not found.plan.feasible or _predicted_seconds(further.plan) < _predicted_seconds(
            found.plan
        )
        return further if slower else found

    def smallest(self, progress: StageProgress) -> tuple[Frontier, int]:
        """The whole frontier, if it can be made and searched, else the file's, and the bytes in all
        that its smallest plan takes. Raises as `read_frontier` does."""
        from tightfit.schemas.costs import read_costs
        from tightfit.schemas.graph.training_graph import read_graph
        from tightfit.stages.combine.memory_budget import BudgetAccounting
        from tightfit.stages.simulate.planning_graph import build_planning_graph

        frontier = self.read_frontier()
        if self.makings is not None and self.search:
            frontier = self.makings.frontier(frontier.strategy, progress)
        graph, costs = read_graph(self.graph), read_costs(self.costs)
        problem = build_planning_graph(graph, costs)
        accounting = BudgetAccounting.of_step(graph, costs, problem, frontier.link)
        return frontier, accounting.budget(MIN_BUDGET, frontier)

    def choose_from(
        self, frontier: Frontier, progress: StageProgress, total: int | None
    ) -> _SelectedPlan:
        """The plan of one frontier."""
        from tightfit.schemas.costs import read_costs
        from tightfit.schemas.graph.fused_groups import count_executed_groups
        from tightfit.schemas.graph.training_graph import has_fused_kernels, read_graph
        from tightfit.stages.combine.select_plan import select_plan
        from tightfit.stages.combine.small_sizes_plan import add_small_sizes_plan
        from tightfit.stages.simulate.planning_graph import build_planning_graph

        graph, costs = read_graph(self.graph), read_costs(self.costs)
        problem = build_planning_graph(graph, costs)
        asked = "" if self.budget == NO_BUDGET else f" for {self.budget}"
        progress.begin(f"{graph.model}: {frontier.strategy}{asked}", "searches at most")
        given = (frontier, self.budget, self.search, total, self.engine, progress.report)
        selected = select_plan(graph, costs, problem, *given)
        _, point, steps = selected
        more = (frontier, selected, self.search, self.engine, progress.report)
        plan, small = add_small_sizes_plan(graph, costs, *more)
        groups, compiled = count_executed_groups(graph, (step.action for step in steps))
        kernels: KernelKind = "fused" if has_fused_kernels(self.graph) else "eager"
        plan = replace(plan, kernels=kernels, threads=costs.device.measured_threads)
        if plan.feasible:
            plan = replace(plan, groups=groups, compiled=compiled)
        elif self.joint:
            plan = replace(plan, message=plan.message + JOINT_NOTE)
        sequence = [] if point is None else point.sequence
        return _SelectedPlan(plan, sequence, steps, frontier.graph, frontier.link, small)


def _is_near_bound(plan: Plan) -> bool:
    """Whether a plan is near to its bound, or no budget was asked for."""
    return plan.budget == NO_BUDGET or (
        plan.feasible and plan.gap is not None and plan.gap <= FAR_GAP
    )


def _predicted_seconds(plan: Plan) -> float:
    """The predicted time of a plan, that of an infeasible one being without end."""
    return math.inf if plan.time is None else plan.time


@dataclass(frozen=True)
class SelectionTask:
    """What a plan is chosen from, and the folder to write it into. With an `eager` request of a
    graph with eager's kernels the better plan of the two is chosen; eager's is written into
    `eager_out` either way. If eager's is required, the smallest budget is one that both fit."""

    stage: ClassVar[str] = "select"
    request: SelectionRequest
    out: Path
    eager: SelectionRequest | None = None
    eager_out: Path | None = None
    eager_required: bool = False

    def run(self, progress: StageProgress) -> Plan:
        """Writes sequence.arrow, schedule.arrow and plan.json and returns the plan. Raises
        ConfigError where a frontier is of another graph."""
        from tightfit.schemas.costs import read_profile_device
        from tightfit.schemas.store import read_header
        from tightfit.stages.combine.local_search.precompile import compile_search
        from tightfit.stages.combine.select_plan import choose_kernels, competing_plan_of

        if self.request.budget != NO_BUDGET and self.request.search:
            link = read_header(self.request.frontier).metadata.get("link")
            compile_search(progress.note, transfers=link is not None)
        found, other = self._choose(progress)
        if other is not None and self.eager_out is not None:
            rival = competing_plan_of(found.plan)
            replace(other, plan=replace(other.plan, competing_plan=rival)).write(self.eager_out)
            plan = choose_kernels(found.plan, other.plan)
            found = replace(found if plan.kernels == "fused" else other, plan=plan)
        if joint := self.request.joint:
            found = replace(found, plan=replace(found.plan, joint_samples=len(joint)))
        found.write(self.out)
        if read_profile_device(self.request.costs).described:
            forget_measurement(self.out)
        return found.plan

    def _choose(self, progress: StageProgress) -> tuple[_SelectedPlan, _SelectedPlan | None]:
        """The plan, and that of eager's kernels, if one is asked for, within the same bytes."""
        if self.request.budget != MIN_BUDGET:
            found = self.request.chosen(progress, self.request.joint_total())
            if self.eager is None:
                return found, None
            return found, self.eager.chosen(progress, found.plan.budget_total)
        frontier, total = self.request.smallest(progress)
        if self.eager is None:
            return self.request.choose_from(frontier, progress, total), None
        other, least = self.eager.smallest(progress)
        total = (max if self.eager_required else min)(total, least)
        found = self.request.choose_from(frontier, progress, total)
        return found, self.eager.choose_from(other, progress, total)

    def lineage_entries(self) -> list[LineageEntry]:
        """What `run` made of what."""
        asked = self.request
        outputs = [self.out / name for name in OUTPUT_FILES]
        read = asked.files
        if self.eager is not None and self.eager_out is not None:
            outputs += [self.eager_out / name for name in OUTPUT_FILES]
            read = list(dict.fromkeys([*read, *self.eager.files]))
        more = {} if asked.search else {"search": False}
        more |= {"eager_required": True} if self.eager_required else {}
        settings = {"budget": asked.budget, "solver": asked.engine, **more}
        return [LineageEntry(outputs, read, settings)]


def forget_measurement(folder: Path) -> None:
    """Removes what was measured of an earlier plan: nothing will measure this one."""
    from tightfit.schemas.lineage import remove_with_lineage

    for name in ("measurement.arrow", "memory_timeline.arrow"):
        remove_with_lineage(folder / name)
