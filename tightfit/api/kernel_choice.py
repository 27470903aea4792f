"""The kernels that plans run: those that are asked for or, where fused ones take longer within the
same bytes or do not fit, eager's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from tightfit.api.backward_optimizer import OptimizerSetup
from tightfit.api.input_specialization import InputSpecialization, sample_shapes
from tightfit.api.optimizer_search import plan_optimizer_step
from tightfit.api.plan_result import ChosenPlan
from tightfit.api.stage_runner import StageRunner
from tightfit.schemas.plan import Plan
from tightfit.util.budget import MIN_BUDGET, NO_BUDGET
from tightfit.util.errors import ConfigError

if TYPE_CHECKING:
    from tightfit.schemas.optimizer_plan import OptimizerStepPrediction

NOT_COMPARED_NOTE = "not compared with plans of eager's kernels, which was interrupted"


@dataclass(frozen=True)
class SpecializedPlan:
    """A plan with the runner that it was made on, and the variant that it is of; `eager_fallback`
    is the one of eager's kernels that its package has, too."""

    runner: StageRunner
    variant: InputSpecialization
    plan: ChosenPlan
    eager_fallback: SpecializedPlan | None = None


@dataclass(frozen=True)
class KernelChoice:
    """The plans of one variant, and those of eager's kernels for the same step, which are made when
    they are first needed."""

    runner: StageRunner
    variant: InputSpecialization
    written: str

    @property
    def eager_runner(self) -> StageRunner:
        """The way to plans of eager's kernels."""
        return self.runner.eager

    @cached_property
    def eager_files(self) -> tuple[Path, Path]:
        """The paths of eager's graph and costs."""
        self.runner.progress.note("looking at eager's kernels, too")
        runner = self.eager_runner
        graph = runner.trace(self.variant.built)
        return graph, runner.profile(self.variant.built, graph)

    @cached_property
    def eager(self) -> InputSpecialization:
        """The variant with eager's kernels."""
        graph, costs = self.eager_files
        return InputSpecialization.with_frontier(
            self.eager_runner, self.variant.built, graph, costs, self.written
        )

    @property
    def can_compare(self) -> bool:
        """Whether there are plans of eager's kernels to compare with."""
        return self.runner.fused_kernels is not None and self.written != NO_BUDGET

    def bytes_of(self, written: str) -> int:
        """A budget as written in bytes of the whole step. The smallest is that of either kernels,
        a share is one of the step that runs those which are asked for. Where eager's are to be
        beside, the smallest is one for both."""
        own = self.variant.bytes_of(written)
        if written != MIN_BUDGET or not self.can_compare:
            return own
        both = max if self.runner.adds_eager_fallback else min
        return both(own, self.eager.bytes_of(written))

    def made(self, budget: str) -> SpecializedPlan:
        """The plan for a budget: where fused kernels are asked for and those of eager have a faster
        plan in as many bytes, or alone have one, it is that. An interruption while eager's are
        looked at gives the other plan, where it fits. Raises ConfigError where none fits."""
        plan, point = self.variant.chosen(self.runner, budget)
        better, said = None, plan
        try:
            better = self.competing_plan(plan) if self.can_compare else None
        except KeyboardInterrupt:
            if not plan.feasible:
                raise
            self.report_interruption()
            said = replace(plan, message=f"{plan.message}; {NOT_COMPARED_NOTE}")
        if better is not None:
            return better
        if not (self.runner.adds_eager_fallback and plan.feasible):
            made = self.variant.package_plan(self.runner, said, point)
            return SpecializedPlan(self.runner, self.variant, made)
        eager, paths = self.eager_fallback(plan)
        made = self.variant.package_plan(self.runner, said, point, paths)
        made = replace(made, eager_fallback=eager.plan)
        return SpecializedPlan(self.runner, self.variant, made, eager)

    def eager_fallback(self, plan: Plan) -> tuple[SpecializedPlan, tuple[Path, Path]]:
        """The plan of eager's kernels for as many bytes as one of fused ones has, with its graph
        and its folder; raises ConfigError where none fits."""
        total = NO_BUDGET if plan.budget_total is None else str(plan.budget_total)
        other, point = self.eager.chosen(self.eager_runner, total)
        if not other.feasible:
            raise ConfigError(f"eager_fallback, with eager's kernels: {other.message}")
        made = self.eager.package_plan(self.eager_runner, other, point)
        return SpecializedPlan(self.eager_runner, self.eager, made), (self.eager.graph, point)

    def report_interruption(self) -> None:
        """Tells that plans of eager's kernels are not looked at."""
        self.runner.progress.note("interrupted, taking the plan of fused kernels")

    def competing_plan(self, plan: Plan) -> SpecializedPlan | None:
        """The plan of eager's kernels where it takes the place of one of fused ones."""
        from tightfit.stages.combine.select_plan import choose_kernels

        if plan.budget_total is None:
            return None
        if plan.time is not None and self.is_unbeatable(plan.time, plan.budget_total):
            return None
        runner = self.eager_runner
        other, place = self.eager.chosen(runner, str(plan.budget_total))
        told = choose_kernels(plan, other)
        if told.kernels == "fused":
            return None
        return SpecializedPlan(runner, self.eager, self.eager.package_plan(runner, told, place))

    def is_unbeatable(self, seconds: float, total: int) -> bool:
        """Whether no step of eager's kernels can take less time in so many bytes."""
        from tightfit.schemas.costs import read_costs
        from tightfit.schemas.graph.training_graph import read_graph
        from tightfit.stages.combine.bounds.lower_bounds import time_lower_bound
        from tightfit.stages.combine.memory_budget import baseline_bytes
        from tightfit.stages.simulate.planning_graph import build_planning_graph

        graph, costs = read_graph(self.eager_files[0]), read_costs(self.eager_files[1])
        room = total - baseline_bytes(graph).bytes_before_step
        return time_lower_bound(graph, costs, build_planning_graph(graph, costs), room) >= seconds

    def plan_with_optimizer(
        self, updating: OptimizerSetup
    ) -> tuple[SpecializedPlan, OptimizerStepPrediction]:
        """The plan whose step with all updates in its backward is within the budget, and what is
        predicted of that step: where whole steps of eager's kernels take less time in as many
        bytes, or alone fit, it is one of these. Raises ConfigError where none fits."""
        refused: ConfigError | None = None
        found: tuple[ChosenPlan, OptimizerStepPrediction] | None = None
        try:
            found = plan_optimizer_step(self.runner, self.variant, updating, self.written)
        except ConfigError as error:
            if not self.can_compare:
                raise
            refused = error
        if self.can_compare:
            try:
                better = self._competing_step(updating, found, refused)
            except KeyboardInterrupt:
                if found is None:
                    raise
                self.report_interruption()
                found = found[0].with_note(NOT_COMPARED_NOTE), found[1]
                better = None
            if better is not None:
                return better
        assert found is not None
        return SpecializedPlan(self.runner, self.variant, found[0]), found[1]

    def _competing_step(
        self,
        updating: OptimizerSetup,
        found: tuple[ChosenPlan, OptimizerStepPrediction] | None,
        refused: ConfigError | None,
    ) -> tuple[SpecializedPlan, OptimizerStepPrediction] | None:
        """The plan of eager's kernels with its whole step, where it takes the place of what was
        found of fused ones."""
        least = self.written == MIN_BUDGET
        total = None if least else self.variant.bytes_of(self.written)
        if found is not None and total is not None and self.is_unbeatable(found[1].seconds, total):
            return None
        try:
            other = plan_optimizer_step(
                self.eager_runner, self.eager, updating, self.written, total
            )
        except ConfigError as error:
            if refused is not None:
                raise ConfigError(f"{refused}; with eager's kernels, {error}") from None
            return None
        if found is None:
            told = "with eager's kernels, as fused ones do not fit"
        elif not _is_smaller(other[1], found[1], least):
            return None
        elif least:
            told = f"with eager's kernels, as fused ones need {found[1].total:,} bytes"
        else:
            share = f"{found[1].seconds / other[1].seconds:.3f}"
            told = f"with eager's kernels, as fused ones would take {share} times as long"
        made = other[0].with_note(told)
        return SpecializedPlan(self.eager_runner, self.eager, made), other[1]


def _is_smaller(
    other: OptimizerStepPrediction, found: OptimizerStepPrediction, least: bool
) -> bool:
    """Whether a whole step takes less time than another, or where bytes are to be the least, fewer
    of these."""
    if least:
        return (other.total, other.seconds) < (found.total, found.seconds)
    return other.seconds < found.seconds


def plan_specializations(
    runner: StageRunner, variants: Sequence[InputSpecialization], written: str
) -> list[SpecializedPlan]:
    """The plans of all variants within one budget; raises ConfigError naming one that has none."""
    rivals = [KernelChoice(runner, variant, written) for variant in variants]
    made = []
    for number, (rival, budget) in enumerate(
        zip(rivals, specialization_budgets(rivals, written), strict=True)
    ):
        shapes = sample_shapes(rival.variant.built)
        try:
            made.append(rival.made(budget))
        except ConfigError as error:
            if len(variants) == 1:
                raise
            raise ConfigError(f"the samples of shapes {shapes}: {error}") from None
        if len(variants) > 1:
            runner.progress.note(f"planned {number + 1} of {len(variants)}: {shapes}")
    return made


def specialization_budgets(rivals: Sequence[KernelChoice], written: str) -> list[str]:
    """What the plan of each variant is to be within: as written where it takes the most, and
    for the others the bytes that this is. Of the smallest budgets it is the largest."""
    if written == NO_BUDGET or (len(rivals) == 1 and written != MIN_BUDGET):
        return [written for _ in rivals]
    sizes = [rival.bytes_of(written) for rival in rivals]
    most = max(sizes)
    return [written if size == most and written != MIN_BUDGET else str(most) for size in sizes]
