"""Plans compared with what they were made from: the model, or the keep-all step with its fused
kernels."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tightfit.api.input_specialization import InputSpecialization
from tightfit.api.plan_result import ChosenPlan
from tightfit.api.stage_runner import StageRunner
from tightfit.util.budget import NO_BUDGET
from tightfit.util.errors import ArtifactError, ModelError

if TYPE_CHECKING:
    import torch
    from torch import nn

    from tightfit.schemas.graph.training_graph import Graph
    from tightfit.stages.torch_utils.model_factory import BuiltModel

LoadPlanned = Callable[["nn.Module", str], "nn.Module"]
"""Makes the planned module of a model, and of what a call that it was not made for does."""


CAPTURED_PLAN_FACTS = {
    "strategy": "keep_all",
    "budget": NO_BUDGET,
    "budget_bytes": None,
    "status": "feasible",
    "message": "",
    "peak": 0,
    "time": 0.0,
}
"""What the package says of the step as it was captured, which nobody keeps."""


def check_captured(runner: StageRunner, built: BuiltModel, graph: Path) -> None:
    """Compares a step as it was captured with the model's own, ahead of the search for a plan.

    That is left to the check of the plan where plans of the graph are known already, where groups
    are fused, and where the model checkpoints itself, since the captured step keeps everything; but
    for checkpoints that are likely to have other results. Raises ModelError where it differs.
    """
    from tightfit.schemas.graph.training_graph import read_graph
    from tightfit.stages.combine.lowering.schedule import lower_to_schedule
    from tightfit.stages.generate.graph_guards import checkpoint_mismatch_causes
    from tightfit.stages.generate.package import write_package, zero_time_costs
    from tightfit.stages.simulate.simulate import simulate
    from tightfit.stages.torch_utils.step_loss import graph_side_effects
    from tightfit.stages.validate.load import load_planned_module
    from tightfit.stages.validate.predictions import is_self_checkpointing
    from tightfit.stages.validate.validate import check_captured_graph

    traced = read_graph(graph)
    keeps_less = is_self_checkpointing(traced) and not checkpoint_mismatch_causes(traced)
    if runner.fused_kernels is not None or keeps_less or any(graph.parent.rglob("frontier.arrow")):
        return
    runner.progress.note("comparing the captured step with the model")
    costs = zero_time_costs(traced)
    executions = [op.id for op in traced.ops if not traced.is_view(op)]
    steps = simulate(traced, costs, lower_to_schedule(traced, costs, executions, False)).steps
    with tempfile.TemporaryDirectory() as folder:
        write_package(Path(folder) / "captured", traced, steps, CAPTURED_PLAN_FACTS)
        try:
            captured = load_planned_module(Path(folder) / "captured", built.model)
        except ArtifactError as error:
            why = str(error.__cause__ or error)
            raise ModelError(f"{built.label}: planning has changed the model: {why}") from error
        with graph_side_effects(traced).preserved(built.model):
            said = check_captured_graph(traced, built, captured)
    if said:
        raise ModelError(said)


def check_plan(
    runner: StageRunner, variant: InputSpecialization, made: ChosenPlan, load: LoadPlanned
) -> ChosenPlan:
    """The plan, compared with its model, with what its steps took beside the model's; one of fused
    kernels says in its sentence how far these are from eager's.

    Raises ModelError where it does not do what it should."""
    built = variant.built
    planned = load(built.model, "error")
    with _preserve_side_effects(variant.graph, built.model):
        if runner.fused_kernels is None:
            said = runner.check(variant.graph, built, planned)
        else:
            keep_all = _keep_all_loader(runner, variant)(built.model, "error")
            said = runner.check_fused(variant.graph, built, planned, keep_all)
        made = made.with_note(said) if said else made
        if said := runner.check_transfers(variant.graph, built, planned, made):
            made = made.with_note(said)
    own = runner.self_checkpointing_peak(variant.graph, built)
    if own is None:
        return made
    return replace(made, message=_compare_with_self_checkpointing(made, own))


def check_sizes(
    runner: StageRunner, variant: InputSpecialization, made: ChosenPlan, load: LoadPlanned
) -> None:
    """Compares a plan with dynamic shapes with its model at the smallest sizes and between.

    Raises ModelError where it differs, or takes more than at the largest."""
    if variant.built.dynamic is None:
        return
    planned = load(variant.built.model, "error")
    with _preserve_side_effects(variant.graph, variant.built.model):
        runner.check_sizes(variant.graph, variant.built, planned, made.peak)


@contextlib.contextmanager
def _preserve_side_effects(graph: Path, model: nn.Module) -> Iterator[None]:
    """Within it copies of a model run that share what their forward changes, as functions do."""
    from tightfit.schemas.graph.training_graph import read_graph
    from tightfit.stages.torch_utils.step_loss import graph_side_effects

    with graph_side_effects(read_graph(graph)).preserved(model):
        yield


def _compare_with_self_checkpointing(made: ChosenPlan, own: int) -> str:
    """The sentence of a plan with what the model takes as it is, which checkpoints itself; `own`
    are the bytes of its step."""
    total = own + made.baseline.bytes_before_step
    if made.peak is not None and made.peak > own:
        return (
            f"no gain, since the model, which checkpoints itself, takes less as it is, {total:,} "
            f'bytes in all: give a budget below that, or budget="min"; {made.message}'
        )
    return (
        f"{made.message}; it replaces the model's own checkpointing, with which the model takes "
        f"{total:,} bytes in all"
    )


def check_updates(
    runner: StageRunner,
    variant: InputSpecialization,
    load: LoadPlanned,
    optimizer: torch.optim.Optimizer,
    replace_optimizer: Callable[[torch.optim.Optimizer], torch.optim.Optimizer],
) -> None:
    """Compares steps with the optimizer that `replace_optimizer` gives with those of the given one.

    Raises ModelError where they differ."""
    original = (
        _load_strictly(_keep_all_loader(runner, variant))
        if runner.fused_kernels is not None
        else None
    )
    own = (_load_strictly(load), original, optimizer, replace_optimizer)
    with _preserve_side_effects(variant.graph, variant.built.model):
        runner.check_updates(variant.graph, variant.built, *own)


def _load_strictly(load: LoadPlanned) -> Callable[[nn.Module], nn.Module]:
    return lambda model: load(model, "error")


def _keep_all_loader(runner: StageRunner, variant: InputSpecialization) -> LoadPlanned:
    from tightfit.api.pickling import package_loader

    return package_loader(runner.keep_all_package(variant.graph, variant.costs))


def check_optimizer_steps(
    runner: StageRunner,
    graph: Graph,
    built: BuiltModel,
    load: Callable[[nn.Module, Any], tuple[nn.Module, Any]],
    optimizer: torch.optim.Optimizer,
    microbatches: int,
) -> None:
    """Compares steps of the model with those of the module and the optimizer that `load` gives.

    Raises ModelError where they differ."""
    from tightfit.stages.validate.offloaded_parameters import STEPS, check_offloaded_step
    from tightfit.util.progress import LabeledProgressCounter

    runner.progress.stage("check")
    told = LabeledProgressCounter(runner.progress.report, 2 * STEPS * microbatches)
    said = check_offloaded_step(graph, built, load, optimizer, microbatches, told)
    if said:
        raise ModelError(said)
