"""Plans compared with what they were made from: the model, or its fused kernels unplanned."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tightfit.choices import ChosenPlan
from tightfit.route import FUSED, Route
from tightfit.schemas.budget import NO_BUDGET
from tightfit.schemas.errors import ModelError
from tightfit.variants import Variant

if TYPE_CHECKING:
    import torch
    from torch import nn

    from tightfit.schemas.graph import Graph
    from tightfit.stages.device.factory import Built

Load = Callable[["nn.Module", str], "nn.Module"]
"""Makes the planned module of a model, by what happens otherwise."""


FACTS = {
    "strategy": "unplanned",
    "budget": NO_BUDGET,
    "budget_bytes": None,
    "verdict": "feasible",
    "sentence": "",
    "peak": 0,
    "time": 0.0,
}
"""What the package says of the step as it was captured, which nobody keeps."""


def check_captured(route: Route, built: Built, graph: Path) -> None:
    """Compares a step as it was captured with the model's own, ahead of the search for a plan.

    That is left to the check of the plan where plans of the graph are known already, where groups
    are fused, and where the model checkpoints itself, since the captured step keeps everything; but
    for checkpoints that are likely to have other results. Raises ModelError where it differs.
    """
    from tightfit.schemas.graph import read_graph
    from tightfit.stages.combine.schedule.opening import open_schedule
    from tightfit.stages.generate.check import causes
    from tightfit.stages.generate.package import timeless, write_package
    from tightfit.stages.replay.referee import replay
    from tightfit.stages.validate.itself import checkpoints_itself
    from tightfit.stages.validate.load import load_planned
    from tightfit.stages.validate.validate import check_captured

    traced = read_graph(graph)
    keeps_less = checkpoints_itself(traced) and not causes(traced)
    if route.kernels == FUSED or keeps_less or any(graph.parent.rglob("frontier.arrow")):
        return
    route.progress.say("comparing the captured step with the model")
    costs = timeless(traced)
    executions = [op.id for op in traced.ops if not traced.is_view(op)]
    steps = replay(traced, costs, open_schedule(traced, costs, executions, False)).steps
    with tempfile.TemporaryDirectory() as folder:
        write_package(Path(folder) / "captured", traced, steps, FACTS)
        said = check_captured(traced, built, load_planned(Path(folder) / "captured", built.model))
    if said:
        raise ModelError(said)


def check_plan(route: Route, variant: Variant, made: ChosenPlan, load: Load) -> None:
    """Compares a plan; one of fused kernels says in its sentence how far these are from eager's.

    Raises ModelError where it does not do what it should."""
    built = variant.built
    planned = load(built.model, "error")
    if route.kernels != FUSED:
        route.check(variant.graph, built, planned)
    else:
        unplanned = _unplanned(route, variant)(built.model, "error")
        said = route.check_fused(variant.graph, built, planned, unplanned)
        object.__setattr__(made, "sentence", f"{made.sentence}; {said}")
    if said := route.check_sent(variant.graph, built, planned, made):
        object.__setattr__(made, "sentence", f"{made.sentence}; {said}")
    own = route.own_peak(variant.graph, built)
    if own is not None:
        object.__setattr__(made, "sentence", _beside_itself(made, own))


def _beside_itself(made: ChosenPlan, own: int) -> str:
    """The sentence of a plan with what the model takes as it is, which checkpoints itself; `own`
    are the bytes of its step."""
    total = own + made.fixed.there_before
    if made.peak is not None and made.peak > own:
        return (
            f"no gain, since the model, which checkpoints itself, takes less as it is, {total:,} "
            f'bytes in all: give a budget below that, or budget="min"; {made.sentence}'
        )
    return (
        f"{made.sentence}; it replaces the model's own checkpointing, with which the model takes "
        f"{total:,} bytes in all"
    )


def check_updates(
    route: Route,
    variant: Variant,
    load: Load,
    optimizer: torch.optim.Optimizer,
    replace_optimizer: Callable[[torch.optim.Optimizer], torch.optim.Optimizer],
) -> None:
    """Compares steps with the optimizer that `replace_optimizer` gives with those of the given one.

    Raises ModelError where they differ."""
    original = _strict(_unplanned(route, variant)) if route.kernels == FUSED else None
    route.check_updates(
        variant.graph, variant.built, _strict(load), original, optimizer, replace_optimizer
    )


def _strict(load: Load) -> Callable[[nn.Module], nn.Module]:
    return lambda model: load(model, "error")


def _unplanned(route: Route, variant: Variant) -> Load:
    from tightfit.carried import loader

    return loader(route.unplanned(variant.graph, variant.costs))


def check_steps(
    route: Route,
    graph: Graph,
    built: Built,
    load: Callable[[nn.Module, Any], tuple[nn.Module, Any]],
    optimizer: torch.optim.Optimizer,
    microbatches: int,
) -> None:
    """Compares steps of the model with those of the module and the optimizer that `load` gives.

    Raises ModelError where they differ."""
    from tightfit.schemas.telling import Doing
    from tightfit.stages.validate.lodged import STEPS, check_lodged

    route.progress.stage("check")
    told = Doing(route.progress.done, 2 * STEPS * microbatches)
    said = check_lodged(graph, built, load, optimizer, microbatches, told)
    if said:
        raise ModelError(said)
