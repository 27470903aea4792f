"""Plans compared with what they were made from: the model, or its fused kernels unplanned."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from tightfit.choices import ChosenPlan
from tightfit.route import FUSED, Route
from tightfit.variants import Variant

if TYPE_CHECKING:
    import torch
    from torch import nn

Load = Callable[["nn.Module", str], "nn.Module"]
"""Makes the planned module of a model, by what happens otherwise."""


def check_plan(route: Route, variant: Variant, made: ChosenPlan, load: Load) -> None:
    """Compares a plan; one of fused kernels says in its sentence how far these are from eager's.

    So is the plan of eager's kernels that is beside it, with the model itself. Raises ModelError
    where one does not do what it should."""
    built = variant.built
    if variant.eager is not None and made.beside is not None:
        check_plan(route.eager, variant.eager, made.beside, _beside(made))
    planned = load(built.model, "error")
    if route.kernels != FUSED:
        route.check(variant.graph, built, planned)
        return
    unplanned = _unplanned(route, variant)(built.model, "error")
    said = route.check_fused(variant.graph, built, planned, unplanned)
    object.__setattr__(made, "sentence", f"{made.sentence}; {said}")


def check_updates(
    route: Route,
    variant: Variant,
    load: Load,
    optimizer: torch.optim.Optimizer,
    disk: Path | str | None,
) -> None:
    """Compares steps whose updates are in the backward with steps whose updates come after it.

    Raises ModelError where they differ."""
    original = _strict(_unplanned(route, variant)) if route.kernels == FUSED else None
    route.check_updates(variant.graph, variant.built, _strict(load), original, optimizer, disk)


def _strict(load: Load) -> Callable[[nn.Module], nn.Module]:
    return lambda model: load(model, "error")


def _beside(made: ChosenPlan) -> Load:
    """Loads the plan of eager's kernels as it travels with another."""
    from tightfit.carried import loader

    return loader(made.module, part="eager")


def _unplanned(route: Route, variant: Variant) -> Load:
    from tightfit.carried import loader

    return loader(route.unplanned(variant.graph, variant.costs))
