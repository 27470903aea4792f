"""Judges a planned module: same numbers, promised memory, and how long it takes."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tightfit.schemas.graph.training_graph import Graph
from tightfit.schemas.measurement import (
    FAILED_STATUS,
    Measurement,
    TimelinePoint,
    downsample_timeline,
)
from tightfit.schemas.plan import TransferTotals
from tightfit.schemas.reference import ReferenceMeasurement
from tightfit.stages.torch_utils.devices import (
    device_of_tensors,
    enter_device,
    is_out_of_memory,
    parse_device,
    release_device_memory,
)
from tightfit.stages.torch_utils.model_factory import (
    BuiltModel,
    all_tensors,
    structure_leaves,
)
from tightfit.stages.torch_utils.number_inputs import original_of_numbers
from tightfit.stages.validate.comparison import (
    MAX_QUICK_STEPS,
    MAX_STEPS,
    SEED,
    Comparer,
    Comparison,
    describe_library_kernels,
    format_sentence,
    freeze_garbage_collector,
)
from tightfit.stages.validate.fused_kernels import try_compare_with_eager
from tightfit.stages.validate.load import load_planned_module
from tightfit.stages.validate.measure import (
    OriginalMeasurement,
    StepTimes,
    add_measured_results,
    complete_step_memory,
    describe_budget_overrun,
    fits_budget,
    measure_gpu_memory,
    measure_memory,
    time_beside,
    time_step_pairs,
    time_steps,
)
from tightfit.stages.validate.predictions import (
    compare_with_self_checkpointing,
    find_nondeterministic_ops,
    is_self_checkpointing,
    predicted_measurement,
    predicted_transfers,
)
from tightfit.stages.validate.resident_memory import add_resident_peak
from tightfit.stages.validate.scenarios import ONE_STEP_SCENARIO, seed_host_random
from tightfit.stages.validate.step_memory import StepMemory, fresh_memory
from tightfit.stages.validate.step_timer import StepTimer
from tightfit.stages.validate.training_step import StepRunner, clear_gradients, detach_sample
from tightfit.stages.validate.transfer_check import (
    add_transfers,
    describe_transfer_mismatch,
    describe_transfers,
    last_transfers,
    transfer_lines,
)
from tightfit.util.errors import ArtifactError, ModelError
from tightfit.util.progress import LabeledProgressCounter, ProgressCallback
from tightfit.util.tracebacks import describe_error

PAIRS = 15
ORIGINAL_MODEL = "the original model"
KEEP_ALL_KERNELS = "the keep-all step of its own kernels"
"""What plans of fused kernels are compared with, in place of the original."""


@dataclass(frozen=True)
class Validation:
    """A measurement, and the memory lines of the planned and of the original step."""

    measurement: Measurement
    line: list[TimelinePoint]


def validate(
    graph: Graph,
    built: BuiltModel,
    plan: Mapping[str, Any],
    module: Path | str | nn.Module,
    pairs: int = PAIRS,
    plan_seconds: float | None = None,
    device: str = "",
    keep_all: Path | str | None = None,
    report: ProgressCallback | None = None,
    original: OriginalMeasurement | None = None,
) -> Validation:
    """Runs a planned module against the model it was made from; `report` is told of each step.

    `module` is the generated directory, or what its `load` made of a copy of the model. Outputs,
    gradients and buffers are compared over two steps on every sample, on other contents, and with
    two forwards before their backwards, each with other random numbers in Python and NumPy. Memory
    is that of these steps; the time of `pairs` pairs of steps follows, on the first sample.
    The status "failed" is for a plan that differs by one bit on the CPU, misses its budget or its
    predicted peak, or fails to run. The message says so, and what that is likely to
    come from. Where the original model's own results differ from run to run, a plan may differ by
    ten times as much, and its sentence says so. Where the original runs kernels of a library that
    the plan does not have, a plan may differ within the tolerance of its dtypes, and its sentence
    names them. Where the original's step does not fit on the device, the plan is measured alone,
    and the sentence says what was not compared. A plan of fused kernels is compared, bit for bit,
    with the module in the directory `keep_all`, which keeps everything, and by its distance
    from float64 with the original; memory and time stand beside the original's. Where an `original`
    was measured before, in a process of its own, its figures are taken and the model is run again
    only in rounds in which the plan gives something else. Nothing is run for a plan without a
    program (status "infeasible"). Raises ArtifactError when the plan lacks a key.
    """
    base = predicted_measurement(graph, plan, plan_seconds)
    if base.status == "infeasible" or base.predicted_peak is None:
        return Validation(base, [])
    told = LabeledProgressCounter(report, MAX_STEPS + 2 + 2 * pairs)
    pair = replace(
        _PlanValidator.of(graph, built, device), predicted=predicted_transfers(plan), told=told
    )
    if original is not None:
        pair = pair.with_original(original)
    try:
        if keep_all is not None:
            pair = pair.with_fused_kernels(load_planned_module(keep_all, built.model))
        planned = (
            module if isinstance(module, nn.Module) else load_planned_module(module, built.model)
        )
        with enter_device(pair.device), freeze_garbage_collector():
            return pair.judge(base, planned, pairs)
    except (ArtifactError, ModelError):
        raise
    except Exception as error:
        said = f"The planned step fails with {describe_error(error)}."
        return Validation(replace(base, status=FAILED_STATUS, message=said), [])


def check_planned_module(
    graph: Graph,
    built: BuiltModel,
    planned: nn.Module,
    report: ProgressCallback | None = None,
    full: bool = True,
) -> str:
    """Compares a planned module with its original as `validate` does, without measuring, or, unless
    `full`, in two steps of both; `report` is told of each step.

    Returns "" where they are equal, else a sentence that says what differs and what that is likely
    to come from. Warns of what is not compared, since the original does not fit on the device, and
    of a library's kernels for which a plan differs within the tolerance of its dtypes.
    Model, samples and random numbers are afterwards as they were.
    """
    try:
        pair = _PlanValidator.of(graph, built)
        with enter_device(pair.device), seed_host_random(SEED):
            told = LabeledProgressCounter(report, MAX_STEPS if full else MAX_QUICK_STEPS)
            compare = pair.comparer.compare if full else pair.comparer.compare_quickly
            compared = compare(planned, told=told)
            for said in filter(
                None, (format_sentence(compared.skipped), describe_library_kernels(compared))
            ):
                warnings.warn(said, stacklevel=2)
            return format_sentence(compared.complaint)
    except ModelError as error:
        return format_sentence(str(error))
    except Exception as error:
        return f"The planned step fails with {describe_error(error)}."


def check_captured_graph(graph: Graph, built: BuiltModel, captured: nn.Module) -> str:
    """Compares one step of a module that runs a graph as it was captured with one of the model.

    Returns "" where they are equal, or have no memory, else a sentence as that of `check`."""
    try:
        pair = _PlanValidator.of(graph, built)
        with enter_device(pair.device), seed_host_random(SEED):
            return format_sentence(
                pair.comparer.compare(captured, rounds=(ONE_STEP_SCENARIO,)).complaint
            )
    except ModelError as error:
        return format_sentence(str(error))
    except Exception as error:
        return (
            ""
            if is_out_of_memory(error)
            else f"The captured step fails with {describe_error(error)}."
        )


def check_fused_module(
    graph: Graph,
    built: BuiltModel,
    planned: nn.Module,
    keep_all: nn.Module,
    report: ProgressCallback | None = None,
    full: bool = True,
) -> str:
    """Compares a planned module with those of its kernels that keep everything, `keep_all`, bit for
    bit, as `check` does with the original, and with the original; "" where all is as it should be,
    else a sentence."""
    said = check_planned_module(graph, replace(built, model=keep_all), planned, report, full)
    return (
        said.replace(ORIGINAL_MODEL, KEEP_ALL_KERNELS)
        if said
        else try_compare_with_eager(graph, built, planned)[0]
    )


def measure_original_peak(graph: Graph, built: BuiltModel) -> int | None:
    """The bytes that one step of the model takes as it is, above what is there before it; None
    where it does not fit on the device. Model, samples and random numbers are afterwards as they
    were."""
    pair = _PlanValidator.of(graph, built)
    try:
        with enter_device(pair.device), freeze_garbage_collector(), seed_host_random(SEED):
            original = pair.comparer.copy_original()
            sample = detach_sample(built.samples[0])
            return measure_memory(original, pair.stepper, sample, pair.device)[0].peak
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
    release_device_memory(pair.device)
    return None


@dataclass(frozen=True)
class _PlanValidator:
    """The original model, and how its planned modules are judged: `comparer` has what they are
    compared with, `beside` what they are measured beside. `keep_all` is the module of their
    kernels, where these are fused, and `foretold` what a plan says of its transfers. `original` is
    what is known of the model's own step."""

    comparer: Comparer
    beside: Comparer
    stepper: StepRunner
    built: BuiltModel
    device: str
    nondeterministic_ops: list[str]
    keep_all: nn.Module | None = None
    predicted: TransferTotals | None = None
    told: LabeledProgressCounter = field(default_factory=LabeledProgressCounter)
    original: OriginalMeasurement | None = None

    @classmethod
    def of(cls, graph: Graph, built: BuiltModel, device: str = "") -> _PlanValidator:
        """A copy of the model of a graph, with the model's samples; `device` is where they are
        unless given."""
        place = (
            parse_device(device) if device else device_of_tensors(all_tensors(built), graph.device)
        )
        stepper, blamed = StepRunner.of(graph, built), find_nondeterministic_ops(graph)
        varying = place.type != "cpu" or bool(blamed)
        original = original_of_numbers(built)
        comparer = Comparer.of(original, stepper, built.samples, varying, place, graph)
        return cls(comparer, comparer, stepper, built, str(place), blamed)

    def with_original(self, original: OriginalMeasurement) -> _PlanValidator:
        """The same where the model's own step was measured before."""
        comparer = replace(self.comparer, known=original.reference.rounds)
        return replace(self, comparer=comparer, original=original)

    def with_fused_kernels(self, keep_all: nn.Module) -> _PlanValidator:
        """The same for plans of fused kernels."""
        known = self.comparer
        place = (known.samples, known.nondeterministic, known.device, known.graph)
        comparer = Comparer.of(keep_all, self.stepper, *place)
        return replace(self, comparer=comparer, keep_all=keep_all)

    def judge(self, base: Measurement, planned: nn.Module, pairs: int) -> Validation:
        """Fills in a measurement."""
        first = detach_sample(self.built.samples[0])
        others = [
            leaf for leaf in structure_leaves(self.built.samples) if isinstance(leaf, torch.Tensor)
        ]
        used = measure_gpu_memory(planned, self.stepper, first, self.device, others=others)
        taken = None if used is None else used.most
        own, beside = StepMemory(self.device), StepMemory(self.device)
        comparer = replace(
            self.comparer,
            planned_memory=own,
            original_memory=None if self.keep_all else beside,
        )
        compared = comparer.compare(planned, itself=True, told=self.told)
        gc.collect()
        timer = StepTimer(planned, self.stepper, detach_sample(self.built.samples[0]), self.device)
        usage = {"planned": self.complete_memory(own, timer, compared.compared)}
        times = resident = None
        if self.original is not None:
            if pairs:
                times, resident = time_beside(timer, pairs, self.original, self.told)
        elif compared.compared:
            times = self.measure_with_original(usage, beside, timer, pairs)
        peaks, known = self.original_peaks(usage)
        if pairs and times is None:
            times = time_steps(timer, pairs, self.told)
        if compared.compared and (peaks[0] is None or (times and times.ratio is None)):
            compared = compared.add_skipped_clause(f"not measured beside the plan on {self.device}")
        fresh = fresh_memory(usage["planned"])
        filled = replace(
            add_measured_results(base, compared, times, known),
            measured_peak=fresh.peak,
            original_peak=peaks[0],
            accumulate_peak=usage["planned"].accumulate_peak,
            original_accumulate_peak=peaks[1],
            allocated_peak=None if taken is None else taken.allocated,
            reserved_peak=None if taken is None else taken.reserved,
            cuda_context=None if used is None else used.context,
            within_budget=fits_budget(base, fresh.peak, taken),
            peak_as_predicted=fresh.peak == base.predicted_peak,
        )
        if known is not None:
            filled = add_resident_peak(filled, known, resident)
        lines = [
            TimelinePoint(run, seconds, live)
            for run, measured in usage.items()
            for seconds, live in downsample_timeline(fresh_memory(measured).line)
        ]
        lines += self.original.line if self.original is not None else []
        moved = last_transfers(planned)
        lines += transfer_lines(moved)
        filled = add_transfers(
            filled, self.predicted, moved, None if times is None else times.waited
        )
        judged = self.conclude(filled, compared, moved)
        if self.keep_all is not None:
            judged = self.add_eager_comparison(judged, base.message, planned)
        return Validation(judged, lines)

    def add_eager_comparison(
        self, judged: Measurement, plans: str, planned: nn.Module
    ) -> Measurement:
        """The measurement of a plan of fused kernels, with how far it is from eager instead of the
        `plans` own sentence."""
        if judged.status == FAILED_STATUS:
            return replace(judged, message=judged.message.replace(ORIGINAL_MODEL, KEEP_ALL_KERNELS))
        wrong, told = try_compare_with_eager(self.comparer.graph, self.built, planned)
        if wrong:
            return replace(judged, status=FAILED_STATUS, message=wrong)
        more = "" if judged.message == plans else judged.message
        return replace(judged, message=f"{more} {format_sentence(told)}".strip())

    def complete_memory(self, memory: StepMemory, timer: StepTimer, warm: bool) -> StepMemory:
        """The memory of the steps of a timer's module, of which a comparison told some."""
        module = (timer.module, self.stepper, timer.sample, self.device)
        return complete_step_memory(memory, *module, warm, self.told)

    def measure_with_original(
        self, usage: dict[str, StepMemory], beside: StepMemory, planned: StepTimer, pairs: int
    ) -> StepTimes | None:
        """The times of both modules, and adds the memory of the original, of which a comparison
        told that `beside`; None where there are no pairs, or the original has no memory beside the
        planned module."""
        try:
            original = planned.renewed(self.beside.copy_original())
            usage["original"] = self.complete_memory(beside, original, False)
            if not pairs:
                return None
            original.time_step()
            return time_step_pairs(planned, original, pairs, self.told)
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
        clear_gradients(planned.module, planned.sample)
        release_device_memory(self.device)
        return None

    def original_peaks(
        self, usage: Mapping[str, StepMemory]
    ) -> tuple[tuple[int | None, int | None], ReferenceMeasurement | None]:
        """The peaks of the original's steps, None where they do not fit, and what was measured of
        it before."""
        if self.original is not None:
            known = self.original.reference
            return (known.peak, known.accumulate_peak), known
        if "original" not in usage:
            return (None, None), None
        own = usage["original"]
        return (fresh_memory(own).peak, own.accumulate_peak), None

    def compare_with_self_checkpointing(self, measured: Measurement) -> tuple[str, str]:
        """What is wrong with a plan, and what else is to be said of it, beside a model that
        checkpoints itself."""
        planned, own = measured.measured_peak, measured.original_peak
        if not is_self_checkpointing(self.comparer.graph) or planned is None or own is None:
            return "", ""
        worse, told = compare_with_self_checkpointing(planned, own)
        return ("", worse) if measured.budget_bytes is None else (worse, told)

    def conclude(self, measured: Measurement, compared: Comparison, moved: Any) -> Measurement:
        """The measurement with the status "failed" where it contradicts the plan; `moved` is what
        its last step sent."""
        complaints = [compared.complaint] if compared.complaint else []
        if not measured.within_budget:
            complaints.append(describe_budget_overrun(measured))
        if not measured.peak_as_predicted:
            complaints.append(
                f"the step takes {measured.measured_peak} bytes where {measured.predicted_peak} "
                "were predicted"
            )
        worse, told = self.compare_with_self_checkpointing(measured)
        sent = describe_transfer_mismatch(self.predicted, measured.offload_target, moved)
        complaints += [said for said in (sent, worse) if said]
        if complaints:
            return replace(
                measured, status=FAILED_STATUS, message=format_sentence("; ".join(complaints))
            )
        if self.predicted is not None and measured.wait_seconds is not None:
            words = describe_transfers(
                self.predicted, measured.offload_target, measured.wait_seconds
            )
            measured = replace(measured, message=f"{measured.message}; {words}")
        if told:
            measured = replace(
                measured, message=f"{measured.message} {format_sentence(told)}".strip()
            )
        if compared.skipped:
            said = f"{measured.message} {format_sentence(compared.skipped)}".strip()
            measured = replace(measured, message=said)
        if compared.difference.bits_equal:
            return measured
        if compared.libraries:
            said = (
                f"{describe_library_kernels(compared)} {format_sentence(compared.skipped)}".strip()
            )
            return replace(measured, message=said)
        blame = " and ".join(self.nondeterministic_ops) if self.device == "cpu" else "CUDA"
        said = (
            f"The original model's results differ from run to run, by up to "
            f"{compared.own.largest:g}, since {blame} adds in no fixed order; the plan's differ "
            f"from them by up to {compared.difference.largest:g}."
        )
        if compared.skipped:
            said = f"{said} {format_sentence(compared.skipped)}"
        return replace(measured, message=said)
