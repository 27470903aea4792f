"""The kernels that plans run: those that are asked for or, where fused ones take longer within the
same bytes or do not fit, eager's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from tightfit.choices import ChosenPlan
from tightfit.route import FUSED, Route
from tightfit.schemas.budget import LEAST, NO_BUDGET
from tightfit.schemas.errors import ConfigError
from tightfit.schemas.plan import Plan
from tightfit.updated import planned_whole
from tightfit.variants import Variant, shapes_of
from tightfit.whole import Updating

if TYPE_CHECKING:
    from tightfit.schemas.updates import WholeStep

NOT_COMPARED = "; not compared with plans of eager's kernels, which was interrupted"


@dataclass(frozen=True)
class Made:
    """A plan with the route that it was made on, and the variant that it is of; `beside` is the one
    of eager's kernels that travels with it."""

    route: Route
    variant: Variant
    plan: ChosenPlan
    beside: Made | None = None


@dataclass(frozen=True)
class Rivals:
    """The plans of one variant, and those of eager's kernels for the same step, which are made when
    they are first needed."""

    route: Route
    variant: Variant
    written: str

    @property
    def eager_route(self) -> Route:
        """The way to plans of eager's kernels."""
        return self.route.eager

    @cached_property
    def eager_files(self) -> tuple[Path, Path]:
        """The paths of eager's graph and costs."""
        self.route.progress.say("looking at eager's kernels, too")
        route = self.eager_route
        graph = route.trace(self.variant.built)
        return graph, route.profile(self.variant.built, graph)

    @cached_property
    def eager(self) -> Variant:
        """The variant with eager's kernels."""
        graph, costs = self.eager_files
        return Variant.with_frontier(
            self.eager_route, self.variant.built, graph, costs, self.written
        )

    @property
    def compete(self) -> bool:
        """Whether there are plans of eager's kernels to compare with."""
        return self.route.kernels == FUSED and self.written != NO_BUDGET

    def bytes_of(self, written: str) -> int:
        """A budget as written in bytes of the whole step. The smallest is that of either kernels,
        a share is one of the step that runs those which are asked for. Where eager's are to be
        beside, the smallest is one for both."""
        own = self.variant.bytes_of(written)
        if written != LEAST or not self.compete:
            return own
        both = max if self.route.with_eager else min
        return both(own, self.eager.bytes_of(written))

    def made(self, budget: str) -> Made:
        """The plan for a budget: where fused kernels are asked for and those of eager have a faster
        plan in as many bytes, or alone have one, it is that. An interruption while eager's are
        looked at gives the other plan, where it fits. Raises ConfigError where none fits."""
        plan, point = self.variant.chosen(self.route, budget)
        better, told = None, ""
        try:
            better = self.better(plan) if self.compete else None
        except KeyboardInterrupt:
            if not plan.feasible:
                raise
            self.say_interrupted()
            told = NOT_COMPARED
        if better is not None:
            return better
        said = replace(plan, sentence=plan.sentence + told)
        beside, paths = None, None
        if self.route.with_eager and plan.feasible:
            beside, paths = self.beside(plan)
        made = self.variant.made_of(self.route, said, point, paths)
        object.__setattr__(made, "beside", None if beside is None else beside.plan)
        return Made(self.route, self.variant, made, beside)

    def beside(self, plan: Plan) -> tuple[Made, tuple[Path, Path]]:
        """The plan of eager's kernels for as many bytes as one of fused ones has, with its graph
        and its folder; raises ConfigError where none fits."""
        total = NO_BUDGET if plan.budget_total is None else str(plan.budget_total)
        other, point = self.eager.chosen(self.eager_route, total)
        if not other.feasible:
            raise ConfigError(f"beside, with eager's kernels: {other.sentence}")
        made = self.eager.made_of(self.eager_route, other, point)
        return Made(self.eager_route, self.eager, made), (self.eager.graph, point)

    def say_interrupted(self) -> None:
        """Tells that plans of eager's kernels are not looked at."""
        self.route.progress.say("interrupted, taking the plan of fused kernels")

    def better(self, plan: Plan) -> Made | None:
        """The plan of eager's kernels where it takes the place of one of fused ones."""
        from tightfit.stages.combine.rivals import taken

        if plan.budget_total is None:
            return None
        if plan.time is not None and self.is_least(plan.time, plan.budget_total):
            return None
        route = self.eager_route
        other, place = self.eager.chosen(route, str(plan.budget_total))
        told = taken(plan, other)
        if told.kernels == FUSED:
            return None
        return Made(route, self.eager, self.eager.made_of(route, told, place))

    def is_least(self, seconds: float, total: int) -> bool:
        """Whether no step of eager's kernels can take less time in so many bytes."""
        from tightfit.schemas.costs import read_costs
        from tightfit.schemas.graph import read_graph
        from tightfit.stages.combine.bounds import least_seconds
        from tightfit.stages.combine.fixed import fixed_bytes
        from tightfit.stages.replay.condense import condense

        graph, costs = read_graph(self.eager_files[0]), read_costs(self.eager_files[1])
        room = total - fixed_bytes(graph).there_before
        return least_seconds(graph, costs, condense(graph, costs), room) >= seconds

    def made_whole(self, updating: Updating) -> tuple[Made, WholeStep]:
        """The plan whose step with all updates in its backward is within the budget, and what is
        predicted of that step: where whole steps of eager's kernels take less time in as many
        bytes, or alone fit, it is one of these. Raises ConfigError where none fits."""
        refused: ConfigError | None = None
        found: tuple[ChosenPlan, WholeStep] | None = None
        try:
            found = planned_whole(self.route, self.variant, updating, self.written)
        except ConfigError as error:
            if not self.compete:
                raise
            refused = error
        if self.compete:
            try:
                better = self._better_whole(updating, found, refused)
            except KeyboardInterrupt:
                if found is None:
                    raise
                self.say_interrupted()
                _say(found[0], NOT_COMPARED)
                better = None
            if better is not None:
                return better
        assert found is not None
        return Made(self.route, self.variant, found[0]), found[1]

    def _better_whole(
        self,
        updating: Updating,
        found: tuple[ChosenPlan, WholeStep] | None,
        refused: ConfigError | None,
    ) -> tuple[Made, WholeStep] | None:
        """The plan of eager's kernels with its whole step, where it takes the place of what was
        found of fused ones."""
        least = self.written == LEAST
        total = None if least else self.variant.bytes_of(self.written)
        if found is not None and total is not None and self.is_least(found[1].seconds, total):
            return None
        try:
            other = planned_whole(self.eager_route, self.eager, updating, self.written, total)
        except ConfigError as error:
            if refused is not None:
                raise ConfigError(f"{refused}; with eager's kernels, {error}") from None
            return None
        if found is None:
            told = "; with eager's kernels, as fused ones do not fit"
        elif not _is_smaller(other[1], found[1], least):
            return None
        elif least:
            told = f"; with eager's kernels, as fused ones need {found[1].total:,} bytes"
        else:
            share = f"{found[1].seconds / other[1].seconds:.3f}"
            told = f"; with eager's kernels, as fused ones would take {share} times as long"
        _say(other[0], told)
        return Made(self.eager_route, self.eager, other[0]), other[1]


def _is_smaller(other: WholeStep, found: WholeStep, least: bool) -> bool:
    """Whether a whole step takes less time than another, or where bytes are to be the least, fewer
    of these."""
    if least:
        return (other.total, other.seconds) < (found.total, found.seconds)
    return other.seconds < found.seconds


def _say(plan: ChosenPlan, more: str) -> None:
    object.__setattr__(plan, "sentence", plan.sentence + more)


def plans_of(route: Route, variants: Sequence[Variant], written: str) -> list[Made]:
    """The plans of all variants within one budget; raises ConfigError naming one that has none."""
    rivals = [Rivals(route, variant, written) for variant in variants]
    made = []
    for number, (rival, budget) in enumerate(zip(rivals, budgets_of(rivals, written), strict=True)):
        shapes = shapes_of(rival.variant.built)
        try:
            made.append(rival.made(budget))
        except ConfigError as error:
            if len(variants) == 1:
                raise
            raise ConfigError(f"the samples of shapes {shapes}: {error}") from None
        if len(variants) > 1:
            route.progress.say(f"planned {number + 1} of {len(variants)}: {shapes}")
    return made


def budgets_of(rivals: Sequence[Rivals], written: str) -> list[str]:
    """What the plan of each variant is to be within: as written where it takes the most, and
    for the others the bytes that this is. Of the smallest budgets it is the largest."""
    if written == NO_BUDGET or (len(rivals) == 1 and written != LEAST):
        return [written for _ in rivals]
    sizes = [rival.bytes_of(written) for rival in rivals]
    most = max(sizes)
    return [written if size == most and written != LEAST else str(most) for size in sizes]
