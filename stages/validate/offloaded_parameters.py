"""Judges steps whose parameters live in an offload target: numbers, bytes of both memories,
time."""

from __future__ import annotations

import contextlib
import copy
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tightfit.schemas.graph.training_graph import Graph
from tightfit.schemas.measurement import (
    FAILED_STATUS,
    ONE_PROCESS,
    Measurement,
    TimelinePoint,
    downsample_timeline,
)
from tightfit.stages.torch_utils.devices import preserve_random_states
from tightfit.stages.torch_utils.memory_meter import MemoryUsage, memory_session
from tightfit.stages.torch_utils.model_factory import BuiltModel, Sample, structure_leaves
from tightfit.stages.validate.comparison import SEED, format_sentence
from tightfit.stages.validate.load import load_offloaded_module, load_package
from tightfit.stages.validate.optimizer_steps import (
    OptimizerSteps,
    accumulate_gradients,
    copy_optimizer,
)
from tightfit.stages.validate.predictions import find_nondeterministic_ops, predicted_measurement
from tightfit.stages.validate.step_results import same_bits
from tightfit.stages.validate.training_step import (
    RandomOutputGradients,
    StepRunner,
    randomize_sample,
)
from tightfit.stages.validate.transfer_check import offload_target_name
from tightfit.stages.validate.validate import Validation
from tightfit.util.command_line import format_duration
from tightfit.util.errors import ConfigError, ModelError
from tightfit.util.progress import LabeledProgressCounter, ProgressCallback
from tightfit.util.tracebacks import describe_error

STEPS = 3
PLAIN_OPTIMIZER_STEP, PLANNED_OPTIMIZER_STEP = (
    "a plain step with its optimizer",
    "a planned step with its optimizer",
)
LoadOffloadedModule = Callable[[nn.Module, torch.optim.Optimizer], tuple[nn.Module, Any]]
"""Makes the planned module of a model, and the optimizer that takes the place of another one."""


def check_offloaded_step(
    graph: Graph,
    built: BuiltModel,
    load: LoadOffloadedModule,
    optimizer: torch.optim.Optimizer,
    microbatches: int = 1,
    told: LabeledProgressCounter | None = None,
) -> str:
    """Takes three steps of some microbatches, each on other contents, of a copy of the model with a
    copy of its optimizer, and of what `load` makes of other copies; each microbatch is `told`.

    Returns "" where outputs, gradients, parameters, buffers and states are equal in every bit, else
    a sentence with the first that differs. Nothing is compared on a GPU, or where the model adds in
    no fixed order. Model, optimizer and random numbers stay as they are.
    """
    if reason_not_compared(graph):
        return ""
    stepper = StepRunner.of(graph, built)
    trails = []
    for make in (None, load):
        twin = copy.deepcopy(built.model)
        own = copy_optimizer(optimizer, built.model, twin)
        given = (stepper, built.samples[0], twin, own, make, microbatches)
        trails.append(_record_optimizer_steps(*given, told or LabeledProgressCounter()))
    kind = type(optimizer).__name__
    for (name, mine), (_, other) in zip(*trails, strict=True):
        if not same_bits(mine, other):
            return format_sentence(f"in {STEPS} steps of {kind}, {name} differs")
    return ""


def reason_not_compared(graph: Graph) -> str:
    """Why the bits of two steps are not compared, "" where they are."""
    if graph.device != "cpu":
        return "since the model is on a GPU"
    blamed = find_nondeterministic_ops(graph)
    return f"since {', '.join(blamed)} adds in no fixed order" if blamed else ""


def _record_optimizer_steps(
    stepper: StepRunner,
    sample: Sample,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    load: LoadOffloadedModule | None,
    microbatches: int,
    told: LabeledProgressCounter,
) -> list[tuple[str, Any]]:
    """What some steps gave, by name."""
    found: list[tuple[str, Any]] = []
    gradients: dict[str, torch.Tensor] = {}
    for path, parameter in model.named_parameters():
        if parameter.requires_grad:
            parameter.register_hook(_make_gradient_recorder(gradients, path))
    stepping: Any
    module, stepping = (model, optimizer) if load is None else load(model, optimizer)
    try:
        with preserve_random_states():
            torch.manual_seed(SEED)
            tangent = RandomOutputGradients(SEED)
            for number in range(STEPS * microbatches):
                given = randomize_sample(sample, SEED + number, tied=True) if number else sample
                last = (number + 1) % microbatches == 0
                told(PLAIN_OPTIMIZER_STEP if load is None else PLANNED_OPTIMIZER_STEP)
                with contextlib.nullcontext() if last else accumulate_gradients(stepping):
                    output, received = stepper.run(module, given, tangent)
                if last:
                    stepping.step()
                    stepping.zero_grad()
                kept = [leaf for leaf in structure_leaves((output, received)) if _is_tensor(leaf)]
                where = f"of step {number // microbatches + 1}"
                found += [(f"an output {where}", leaf.detach().clone()) for leaf in kept]
                found += [(f"the gradient of {p} {where}", gradients[p]) for p in sorted(gradients)]
                gradients.clear()
        found += list(module.state_dict().items())
        states = stepping.state_dict()["state"]
        found += [
            (f"state {key} of parameter {number}", value)
            for number, own in sorted(states.items())
            for key, value in own.items()
        ]
    finally:
        if load is not None:
            stepping.close()
    return found


def _make_gradient_recorder(
    gradients: dict[str, torch.Tensor], path: str
) -> Callable[[torch.Tensor], None]:
    def keep(gradient: torch.Tensor) -> None:
        gradients[path] = gradient.detach().clone()

    return keep


def _is_tensor(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor)


def has_offloaded_parameters(module: Path | str) -> bool:
    """Whether a generated directory is one of a step whose parameters live in an offload target;
    raises ArtifactError where it is no package."""
    return hasattr(load_package(module), "OFFLOAD_PLAN")


def validate_offloaded_step(
    graph: Graph,
    built: BuiltModel,
    plan: Mapping[str, Any],
    module: Path | str,
    pairs: int,
    device: str,
    folder: str | None = None,
    second_disk: str | None = None,
    report: ProgressCallback | None = None,
) -> Validation:
    """Runs a planned step beside a plain one with an optimizer of `torch.optim`, on copies of the
    model, and measures both; `report` is told of each step.

    The status is "failed" where a bit differs, or the first or a later step takes other bytes than
    predicted, or the offload target others. Raises ModelError where there is no such optimizer, and
    ConfigError where the plan has states in a second offload tier, and no folder is named for it.
    """
    base = replace(
        predicted_measurement(graph, plan, None), offload_target=offload_target_name(graph.device)
    )
    package: Any = load_package(module)
    offload_plan = package.OFFLOAD_PLAN
    if offload_plan.second_tier and not second_disk:
        raise ConfigError(
            "--second-disk: the plan has states in a second offload tier, name its folder"
        )

    def load(model: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[nn.Module, Any]:
        return load_offloaded_module(module, model, optimizer, folder, second_disk)

    def made(model: nn.Module) -> torch.optim.Optimizer:
        return build_optimizer(offload_plan, model)

    try:
        count = offload_plan.microbatches
        told = LabeledProgressCounter(report, (2 * STEPS + 3) * count + 2 * pairs)
        said = check_offloaded_step(graph, built, load, made(built.model), count, told)
        stepper, sample = StepRunner.of(graph, built), built.samples[0]
        plain = copy.deepcopy(built.model)
        theirs = OptimizerSteps(
            stepper, sample, plain, made(plain), PLAIN_OPTIMIZER_STEP, told, count
        )
        # The meter knows the bytes of what was made while it ran.
        with memory_session(device):
            twin = copy.deepcopy(built.model)
        ours = OptimizerSteps(
            stepper, sample, *load(twin, made(twin)), PLANNED_OPTIMIZER_STEP, told, count
        )
        return _measure_steps(
            base, offload_plan, ours, theirs, said, reason_not_compared(graph), pairs, device
        )
    except ModelError:
        raise
    except Exception as error:
        failed = f"The planned step fails with {describe_error(error)}."
        return Validation(replace(base, status=FAILED_STATUS, message=failed), [])


def _measure_steps(
    base: Measurement,
    offload_plan: Any,
    ours: OptimizerSteps,
    theirs: OptimizerSteps,
    said: str,
    uncompared: str,
    pairs: int,
    device: str,
) -> Validation:
    """What both take; `said` is what differs in bits, "" for nothing, and `uncompared` why these
    were not compared."""
    begun, later = ours.microbatch_usages(device), ours.microbatch_usages(device)
    slow = ours.optimizer.slow_bytes
    theirs.run()
    plain = theirs.microbatch_usages(device)
    original = max(plain, key=lambda usage: usage.peak)
    times, waited = _time_steps(ours, theirs, pairs, device)
    wrong = [
        f"{which} {found} bytes where {foretold} were predicted"
        for which, found, foretold in _measured_and_predicted_peaks(offload_plan, begun, later)
        if found != foretold
    ]
    complaints = [said.removesuffix(".")] if said else []
    complaints += [*wrong, *_check_offload_tiers(offload_plan, slow, ours.optimizer.far_bytes)]
    ours.optimizer.close()
    beside = (base.predicted_peak or 0) - max(offload_plan.peak, offload_plan.microbatch_peak)
    # What the first of several microbatches leaves is there in all others.
    most = max(usage.peak for usage in later[1:] or later) + beside
    same = not said and not uncompared
    filled = replace(
        base,
        measured_peak=most,
        original_peak=original.peak,
        accumulate_peak=max((usage.peak for usage in later[:-1]), default=None),
        original_accumulate_peak=max((usage.peak for usage in plain[:-1]), default=None),
        within_budget=base.budget_bytes is None or most <= base.budget_bytes,
        peak_as_predicted=not wrong,
        bits_equal=same,
        output_difference=0.0 if same else None,
        gradient_difference=0.0 if same else None,
        buffer_difference=0.0 if same else None,
        predicted_offload_peak=_offloaded_bytes(offload_plan),
        offload_peak=slow,
        wait_seconds=waited,
    )
    filled = _add_times(filled, times) if times else filled
    if complaints:
        filled = replace(
            filled, status=FAILED_STATUS, message=format_sentence("; ".join(complaints))
        )
    else:
        told = [filled.message, *_describe_measurement(filled, offload_plan, uncompared)]
        filled = replace(filled, message="; ".join(told))
    # Parameters that are on the device before the step are part of a plan's memory.
    lines = [
        TimelinePoint(run, seconds, live + there)
        for run, usage, there in (("planned", later[-1], beside), ("original", original, 0))
        for seconds, live in downsample_timeline(usage.line)
    ]
    return Validation(filled, lines)


def _time_steps(
    ours: OptimizerSteps, theirs: OptimizerSteps, pairs: int, device: str
) -> tuple[list[tuple[float, float]], float | None]:
    """The seconds of alternating steps, in pairs, and those for which each of ours waited."""
    begin = ours.waited
    times = [(ours.seconds(device), theirs.seconds(device)) for _ in range(pairs)]
    return times, (ours.waited - begin) / pairs if pairs else None


def _add_times(filled: Measurement, times: Sequence[tuple[float, float]]) -> Measurement:
    """A measurement with the medians of pairs of seconds, and the quartiles of their ratios."""
    ratios = sorted(mine / its for mine, its in times)
    quartiles = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else [ratios[0]] * 3
    return replace(
        filled,
        measured_time=statistics.median(mine for mine, _ in times),
        original_time=statistics.median(its for _, its in times),
        time_ratio=statistics.median(ratios),
        time_ratio_first_quartile=quartiles[0],
        time_ratio_third_quartile=quartiles[2],
        pairs=len(times),
        timing=ONE_PROCESS,
    )


def _offloaded_bytes(offload_plan: Any) -> int:
    """The bytes of the offload target that a plan has."""
    return int(
        offload_plan.parameter_bytes
        + offload_plan.state_bytes
        + offload_plan.activation_bytes
        + offload_plan.gradient_sum_bytes
    )


def _check_offload_tiers(offload_plan: Any, slow: int, far: int) -> list[str]:
    """What differs from the prediction in the bytes of the offload targets."""
    memories = (
        ("offload target", slow, _offloaded_bytes(offload_plan)),
        ("second offload tier", far, offload_plan.second_tier_bytes),
    )
    return [
        f"the {name} has {found} bytes where {foretold} were predicted"
        for name, found, foretold in memories
        if found != foretold
    ]


def _describe_measurement(found: Measurement, offload_plan: Any, uncompared: str) -> list[str]:
    """What is to be said of a step that takes what was predicted."""
    told = []
    if offload_plan.second_tier_bytes:
        told.append(
            f"{offload_plan.second_tier_bytes:,} bytes of states are in the second offload tier, "
            "as predicted"
        )
    if offload_plan.microbatches > 1:
        told.append(
            f"each of its {offload_plan.microbatches} microbatches takes the bytes predicted"
        )
    if found.wait_seconds is not None:
        waits = f"a step waits for the offload target for {format_duration(found.wait_seconds)}"
        if found.predicted_wait_seconds is not None:
            waits += f" where {format_duration(found.predicted_wait_seconds)} were predicted"
        told.append(waits)
    if told:
        told[0] = f"measured, {told[0]}"
    if uncompared:
        told.append(f"bits were not compared with those of {offload_plan.optimizer}, {uncompared}")
    return told


def _measured_and_predicted_peaks(
    offload_plan: Any, first: list[MemoryUsage], steady: list[MemoryUsage]
) -> list[tuple[str, int, int]]:
    """What the microbatches of the first and of a later step take: in words, as found, as
    foretold."""
    found = [
        ("the first step takes", first[-1].peak, offload_plan.first_peak),
        ("a step takes", steady[-1].peak, offload_plan.peak),
    ]
    for usages in (first, steady):
        for number, usage in enumerate(usages[:-1]):
            foretold = (
                offload_plan.microbatch_peak if number else offload_plan.first_microbatch_peak
            )
            found.append((f"microbatch {number + 1} takes", usage.peak, foretold))
    return found


def build_optimizer(offload_plan: Any, model: nn.Module) -> torch.optim.Optimizer:
    """An optimizer of the class that a plan was made for with its settings, over the parameters
    that it updates, that keeps states where the plan has some; raises ModelError where none of
    `torch.optim` does."""
    kinds: dict[str, Callable[..., torch.optim.Optimizer]] = {
        "SGD": torch.optim.SGD,
        "Adam": torch.optim.Adam,
        "AdamW": torch.optim.AdamW,
    }
    name = offload_plan.optimizer
    if name not in kinds:
        raise ModelError(f"the plan was made for the optimizer {name!r}, which is not known")
    updated = [model.get_parameter(path) for path in offload_plan.updated]
    settings = {"momentum": 0.9} if name == "SGD" and offload_plan.state_bytes else {}
    return kinds[name](updated, **{"lr": 1e-3, **settings, **offload_plan.settings})
