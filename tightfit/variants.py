"""The variants of a model's call, one for each shape of its samples, with their frontiers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tightfit.choices import Choice, ChosenPlan
from tightfit.interrupted import frontier_so_far
from tightfit.route import ALONE, FUSED, Route
from tightfit.schemas.budget import EXPECTED, LEAST, NO_BUDGET, asked_budget
from tightfit.schemas.errors import ConfigError
from tightfit.schemas.frontier import Frontier, read_frontier
from tightfit.schemas.plan import Plan

if TYPE_CHECKING:
    from tightfit.stages.combine.in_all import InAll
    from tightfit.stages.device.factory import Built

INTERRUPTED = "interrupted, taking the best plan so far"
SO_FAR = "; the best plan when its making was interrupted"


@dataclass(frozen=True)
class Variant:
    """Samples of one shape with the paths of their graph, costs and frontier, which may be that of
    the strategy's own plans; `more` is what is to be said of it."""

    built: Built
    graph: Path
    costs: Path
    path: Path
    frontier: Frontier
    more: str

    @classmethod
    def of(cls, route: Route, built: Built, written: str, traced: Path | None = None) -> Variant:
        """Makes what is not in the store yet; the graph may be `traced` already."""
        graph = traced or route.trace(built)
        if route.kernels == FUSED:
            graph = route.fuse(graph)
        return cls.with_frontier(route, built, graph, route.profile(built, graph), written)

    @classmethod
    def with_frontier(
        cls, route: Route, built: Built, graph: Path, costs: Path, written: str
    ) -> Variant:
        """Makes the frontier of a graph and its costs, where it is not in the store yet."""
        path, more = _frontier(route, graph, costs, written)
        return cls(built, graph, costs, path, read_frontier(path), more)

    def bytes_of(self, written: str) -> int:
        """A budget as written, or the smallest that works, in bytes of the whole step."""
        in_all = _in_all(self.graph, self.costs)
        if written == LEAST:
            return in_all.of(in_all.least(self.frontier))
        return in_all.budget(written, self.frontier)

    def made(self, route: Route, budget: str) -> ChosenPlan:
        """The plan for a budget; raises ConfigError where none fits."""
        return self.made_of(route, *self.chosen(route, budget))

    def chosen(self, route: Route, budget: str, search: bool = True) -> tuple[Plan, Path]:
        """The plan for a budget, which may be infeasible, and its folder; without a `search` it is
        the frontier's. Where looking for a faster one is interrupted, it is that, too, if there is
        one; else the interruption is raised."""
        try:
            plan, point = route.choose(self.graph, self.costs, self.path, budget, search)
        except KeyboardInterrupt:
            route.progress.say(INTERRUPTED)
            plan, point = route.choose(self.graph, self.costs, self.path, budget, search=False)
            if not plan.feasible:
                raise
            return replace(plan, sentence=plan.sentence + ("" if self.more else SO_FAR)), point
        if not plan.feasible and not self.more:
            path = route.frontier(self.graph, self.costs)
            if path != self.path:
                plan, point = route.choose(self.graph, self.costs, path, budget)
        return plan, point

    def made_of(
        self, route: Route, plan: Plan, point: Path, beside: tuple[Path, Path] | None = None
    ) -> ChosenPlan:
        """A plan with its package, which the plan in the second folder of `beside`, of the graph
        there, goes along with; raises ConfigError where it is infeasible."""
        if not plan.feasible:
            raise ConfigError(plan.sentence)
        module = route.module(self.graph, point, beside)
        said = replace(plan, sentence=plan.sentence + self.more + _more_of(self.graph))
        known = partial(read_frontier, self.path)
        whole = partial(_whole, route, self.graph, self.costs)
        totals = partial(totals_of, self.graph, self.costs)
        return ChosenPlan.of(said, known if self.more else whole, totals, module)


def written_budget(budget: str | int | Choice) -> str:
    """A budget as text; raises ConfigError where it is none."""
    if isinstance(budget, Choice):
        return str(budget.budget)
    if budget == LEAST:
        return LEAST
    return asked_budget(budget, expected=f"{EXPECTED}, or '{LEAST}'").text


def shapes_of(built: Built) -> str:
    """The shapes of a sample's tensors."""
    import torch
    from torch.utils import _pytree as pytree

    leaves: list[Any] = pytree.tree_leaves(built.samples[0])
    shapes = (str(tuple(leaf.shape)) for leaf in leaves if isinstance(leaf, torch.Tensor))
    return ", ".join(shapes) + (" with a mask of not only ones" if built.mixed else "")


def _more_of(graph: Path) -> str:
    """What is to be said where the forward asks whether an input is all ones, and of checkpoints
    that give no gradients."""
    from tightfit.schemas.graph import read_graph
    from tightfit.stages.generate.check import guarded, ungraded
    from tightfit.stages.trace.checkpoints import ungraded_clause

    said = {
        "ones": "it takes calls in which {} holds only ones",
        "mixed": "it takes calls in which {} does not hold only ones",
        "wished": "{} holds only ones in the sample, where the model itself takes a shorter way: "
        "ones=True plans that one, without it eager may differ in last bits and memory",
        "masks": "where {} holds only ones the model itself takes a shorter way, which may differ "
        "in last bits and memory",
    }
    traced = read_graph(graph)
    masks = [said[name].format(" and ".join(names)) for name, names in guarded(traced).items()]
    return "".join(f"; {clause}" for clause in [*masks, *map(ungraded_clause, ungraded(traced))])


def _whole(route: Route, graph: Path, costs: Path) -> Frontier:
    """The whole frontier, made unless it is there."""
    with ALONE, route.progress.telling("trace", "profile", "choose", "generate", "check"):
        return read_frontier(route.frontier(graph, costs))


def _in_all(graph: Path, costs: Path) -> InAll:
    """What budgets count for a graph and its costs."""
    from tightfit.schemas.costs import read_costs
    from tightfit.schemas.graph import read_graph
    from tightfit.stages.combine.in_all import InAll
    from tightfit.stages.replay.condense import condense

    traced, paid = read_graph(graph), read_costs(costs)
    return InAll.of_step(traced, paid, condense(traced, paid))


def totals_of(graph: Path, costs: Path, frontier: Frontier) -> list[int]:
    """What each point of a frontier takes, as budgets count it."""
    in_all = _in_all(graph, costs)
    return [in_all.of(point) for point in frontier.points]


def _frontier(route: Route, graph: Path, costs: Path, written: str) -> tuple[Path, str]:
    """The frontier, and what is to be said of it; only for the least budget it is the whole one.
    Where making it is interrupted, it is that of what is known so far, if a plan of it fits; else
    the interruption is raised."""
    try:
        return route.frontier(graph, costs, given=written not in (LEAST, NO_BUDGET)), ""
    except KeyboardInterrupt:
        from tightfit.schemas.costs import read_costs
        from tightfit.schemas.graph import read_graph
        from tightfit.stages.combine.choose import choose
        from tightfit.stages.replay.condense import condense

        route.progress.say(INTERRUPTED)
        known = frontier_so_far(route, graph, costs)
        if known is None or written == LEAST:
            raise
        traced, paid = read_graph(graph), read_costs(costs)
        best = read_frontier(known)
        if choose(traced, paid, condense(traced, paid), best, written)[1] is None:
            raise
    return known, SO_FAR
