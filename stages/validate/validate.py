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

from tightfit.schemas.errors import ArtifactError, ModelError
from tightfit.schemas.graph import Graph
from tightfit.schemas.measurement import FAILED, LinePoint, Measurement, thin
from tightfit.schemas.plan import Transfers
from tightfit.schemas.reference import Reference
from tightfit.schemas.telling import Doing, Telling
from tightfit.stages.device.devices import (
    device_named,
    device_of,
    entered,
    is_out_of_memory,
    release,
)
from tightfit.stages.device.factory import Built, Sample, all_tensors
from tightfit.stages.device.leaves import leaves_of
from tightfit.stages.device.meter import Usage
from tightfit.stages.validate.comparison import (
    MOST,
    ORIGINAL_STEP,
    PLANNED_STEP,
    QUICK_MOST,
    SEED,
    Comparer,
    Comparison,
    other_kernels,
    quick_collections,
    sentence,
)
from tightfit.stages.validate.foretold import base_of, transfers_of
from tightfit.stages.validate.fused import beside_eager
from tightfit.stages.validate.itself import beside_itself, checkpoints_itself
from tightfit.stages.validate.load import describe, load_planned
from tightfit.stages.validate.measure import (
    Times,
    measure_alone,
    measure_memory,
    measure_times,
    taken_memory,
)
from tightfit.stages.validate.reference import Original
from tightfit.stages.validate.results import is_within, over_budget, with_results
from tightfit.stages.validate.rounds import ONE_STEP, other_numbers
from tightfit.stages.validate.sent import (
    complaint_of,
    last_moved,
    lines_of,
    with_sent,
    words_of,
)
from tightfit.stages.validate.step import Stepper, forget_gradients, fresh_sample
from tightfit.stages.validate.unordered import unordered

PAIRS = 15
ORIGINAL = "the original model"
KERNELS = "its own kernels unplanned"
"""What plans of fused kernels are compared with, in place of the original."""


@dataclass(frozen=True)
class Validation:
    """A measurement, and the memory lines of the planned and of the original step."""

    measurement: Measurement
    line: list[LinePoint]


def validate(
    graph: Graph,
    built: Built,
    plan: Mapping[str, Any],
    module: Path | str | nn.Module,
    pairs: int = PAIRS,
    plan_seconds: float | None = None,
    device: str = "",
    unplanned: Path | str | None = None,
    report: Telling | None = None,
    original: Original | None = None,
) -> Validation:
    """Runs a planned module against the model it was made from; `report` is told of each step.

    `module` is the generated directory, or what its `load` made of a copy of the model. Outputs,
    gradients and buffers are compared over two steps on every sample, on other contents, and with
    two forwards before their backwards, each with other random numbers in Python and NumPy. Memory
    follows, and the time of `pairs` alternating pairs of steps (none where 0), on the first sample.
    The verdict "failed" is for a plan that differs by one bit on the CPU, misses its budget or its
    predicted peak, or fails to run. The sentence of the verdict says so, and what that is likely to
    come from. Where the original model's own results differ from run to run, a plan may differ by
    ten times as much, and its sentence says so. Where the original runs kernels of a library that
    the plan does not have, a plan may differ within the tolerance of its dtypes, and its sentence
    names them. Where the original's step does not fit on the device, the plan is measured alone,
    and the sentence says what was not compared. A plan of fused kernels is compared, bit for bit,
    with the module in the directory `unplanned`, which runs them unplanned, and by its distance
    from float64 with the original; memory and time stand beside the original's. Where an `original`
    was measured before, in a process of its own, its figures are taken and the model is run again
    only in rounds in which the plan gives something else. Nothing is run for a plan without a
    program (verdict "infeasible"). Raises ArtifactError when the plan lacks a key.
    """
    base = base_of(graph, plan, plan_seconds)
    if base.verdict == "infeasible" or base.predicted_peak is None:
        return Validation(base, [])
    told = Doing(report, MOST + 2 + pairs)
    pair = replace(_Pair.of(graph, built, device), foretold=transfers_of(plan), told=told)
    if original is not None:
        pair = pair.knowing(original)
    try:
        if unplanned is not None:
            pair = pair.of_kernels(load_planned(unplanned, built.model))
        planned = module if isinstance(module, nn.Module) else load_planned(module, built.model)
        with entered(pair.device), quick_collections():
            return pair.judge(base, planned, pairs)
    except (ArtifactError, ModelError):
        raise
    except Exception as error:
        said = f"The planned step fails with {describe(error)}."
        return Validation(replace(base, verdict=FAILED, sentence=said), [])


def check(
    graph: Graph,
    built: Built,
    planned: nn.Module,
    report: Telling | None = None,
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
        pair = _Pair.of(graph, built)
        with entered(pair.device), other_numbers(SEED):
            told = Doing(report, MOST if full else QUICK_MOST)
            compare = pair.comparer.compare if full else pair.comparer.compare_quickly
            compared = compare(planned, told=told)
            for said in filter(None, (sentence(compared.skipped), other_kernels(compared))):
                warnings.warn(said, stacklevel=2)
            return sentence(compared.complaint)
    except ModelError as error:
        return sentence(str(error))
    except Exception as error:
        return f"The planned step fails with {describe(error)}."


def check_captured(graph: Graph, built: Built, captured: nn.Module) -> str:
    """Compares one step of a module that runs a graph as it was captured with one of the model.

    Returns "" where they are equal, or have no memory, else a sentence as that of `check`."""
    try:
        pair = _Pair.of(graph, built)
        with entered(pair.device), other_numbers(SEED):
            return sentence(pair.comparer.compare(captured, rounds=(ONE_STEP,)).complaint)
    except ModelError as error:
        return sentence(str(error))
    except Exception as error:
        return "" if is_out_of_memory(error) else f"The captured step fails with {describe(error)}."


def check_fused(
    graph: Graph,
    built: Built,
    planned: nn.Module,
    unplanned: nn.Module,
    report: Telling | None = None,
    full: bool = True,
) -> str:
    """Compares a planned module with the same kernels `unplanned`, bit for bit, as `check` does
    with the original, and with the original; "" where all is as it should be, else a sentence."""
    said = check(graph, replace(built, model=unplanned), planned, report, full)
    return said.replace(ORIGINAL, KERNELS) if said else _beside_eager(graph, built, planned)[0]


def own_peak(graph: Graph, built: Built) -> int | None:
    """The bytes that one step of the model takes as it is, above what is there before it; None
    where it does not fit on the device. Model, samples and random numbers are afterwards as they
    were."""
    pair = _Pair.of(graph, built)
    try:
        with entered(pair.device), quick_collections(), other_numbers(SEED):
            original = pair.comparer.original_here()
            sample = fresh_sample(built.samples[0])
            return measure_memory(original, pair.stepper, sample, pair.device)[0].peak
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
    release(pair.device)
    return None


def _beside_eager(graph: Graph, built: Built, planned: nn.Module) -> tuple[str, str]:
    """The sentences of `beside_eager`; the first says so where nothing can be compared."""
    try:
        return beside_eager(graph, built, planned)
    except RuntimeError as error:
        why = describe(error)
        return f"The step of fused kernels cannot be compared with eager ({why}).", ""


@dataclass(frozen=True)
class _Pair:
    """The original model, and how its planned modules are judged: `comparer` has what they are
    compared with, `beside` what they are measured beside. `unplanned` is the module of their
    kernels, where these are fused, and `foretold` what a plan says of its transfers. `original` is
    what is known of the model's own step."""

    comparer: Comparer
    beside: Comparer
    stepper: Stepper
    built: Built
    device: str
    unordered: list[str]
    unplanned: nn.Module | None = None
    foretold: Transfers | None = None
    told: Doing = field(default_factory=Doing)
    original: Original | None = None

    @classmethod
    def of(cls, graph: Graph, built: Built, device: str = "") -> _Pair:
        """A copy of the model of a graph, with the model's samples; `device` is where they are
        unless given."""
        place = device_named(device) if device else device_of(all_tensors(built), graph.device)
        stepper, blamed = Stepper.of(graph, built), unordered(graph)
        varying = place.type != "cpu" or bool(blamed)
        comparer = Comparer.of(built.model, stepper, built.samples, varying, place, graph)
        return cls(comparer, comparer, stepper, built, str(place), blamed)

    def knowing(self, original: Original) -> _Pair:
        """The same where the model's own step was measured before."""
        comparer = replace(self.comparer, known=original.reference.rounds)
        return replace(self, comparer=comparer, original=original)

    def of_kernels(self, unplanned: nn.Module) -> _Pair:
        """The same for plans of fused kernels."""
        known = self.comparer
        comparer = Comparer.of(
            unplanned, self.stepper, known.samples, known.varying, known.device, known.graph
        )
        return replace(self, comparer=comparer, unplanned=unplanned)

    def judge(self, base: Measurement, planned: nn.Module, pairs: int) -> Validation:
        """Fills in a measurement."""
        first = fresh_sample(self.built.samples[0])
        others = [leaf for leaf in leaves_of(self.built.samples) if isinstance(leaf, torch.Tensor)]
        used = taken_memory(planned, self.stepper, first, self.device, others=others)
        taken = None if used is None else used.most
        compared = self.comparer.compare(planned, itself=True, told=self.told)
        gc.collect()
        sample = fresh_sample(self.built.samples[0])
        warm = compared.compared
        self.told(f"the memory of {PLANNED_STEP}")
        usage = {"planned": measure_memory(planned, self.stepper, sample, self.device, warm)}
        times = None
        if self.original is None and compared.compared:
            times = self.beside_original(usage, planned, sample, pairs)
        peaks, known = self.known_of_original(usage)
        if pairs and times is None:
            own = (self.stepper, sample, pairs, self.device, self.told)
            times = measure_alone(planned, *own, known.seconds if known else ())
        if compared.compared and (peaks[0] is None or (times and times.ratio is None)):
            compared = compared.skipping(f"not measured beside the plan on {self.device}")
        fresh, accumulating = usage["planned"]
        filled = replace(
            with_results(base, compared, times, known),
            measured_peak=fresh.peak,
            unplanned_peak=peaks[0],
            accumulate_peak=accumulating.peak,
            unplanned_accumulate_peak=peaks[1],
            allocated_peak=None if taken is None else taken.allocated,
            reserved_peak=None if taken is None else taken.reserved,
            context=None if used is None else used.context,
            within_budget=is_within(base, fresh.peak, taken),
            peak_as_predicted=fresh.peak == base.predicted_peak,
        )
        lines = [
            LinePoint(run, seconds, live)
            for run, measured in usage.items()
            for seconds, live in thin(measured[0].line)
        ]
        lines += self.original.line if self.original is not None else []
        moved = last_moved(planned)
        lines += lines_of(moved)
        filled = with_sent(filled, self.foretold, moved, None if times is None else times.waited)
        judged = self.verdict(filled, compared, moved)
        if self.unplanned is not None:
            judged = self.of_fused(judged, base.sentence, planned)
        return Validation(judged, lines)

    def of_fused(self, judged: Measurement, plans: str, planned: nn.Module) -> Measurement:
        """The measurement of a plan of fused kernels, with how far it is from eager instead of the
        `plans` own sentence."""
        if judged.verdict == FAILED:
            return replace(judged, sentence=judged.sentence.replace(ORIGINAL, KERNELS))
        wrong, told = _beside_eager(self.comparer.graph, self.built, planned)
        if wrong:
            return replace(judged, verdict=FAILED, sentence=wrong)
        more = "" if judged.sentence == plans else judged.sentence
        return replace(judged, sentence=f"{more} {sentence(told)}".strip())

    def beside_original(
        self, usage: dict[str, tuple[Usage, Usage]], planned: nn.Module, sample: Sample, pairs: int
    ) -> Times | None:
        """The times of both modules, and adds the memory of the original; None where there are no
        pairs, or the original has no memory beside the planned module."""
        try:
            original = self.beside.original_here()
            self.told(f"the memory of {ORIGINAL_STEP}")
            usage["unplanned"] = measure_memory(original, self.stepper, sample, self.device)
            if not pairs:
                return None
            own = (self.stepper, sample, pairs, self.device, self.told)
            return measure_times(planned, original, *own)
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
        forget_gradients(planned, sample)
        release(self.device)
        return None

    def known_of_original(
        self, usage: Mapping[str, tuple[Usage, Usage]]
    ) -> tuple[tuple[int | None, int | None], Reference | None]:
        """The peaks of the original's steps, None where they do not fit, and what was measured of
        it before."""
        if self.original is not None:
            known = self.original.reference
            return (known.peak, known.accumulate_peak), known
        if "unplanned" not in usage:
            return (None, None), None
        fresh, accumulating = usage["unplanned"]
        return (fresh.peak, accumulating.peak), None

    def beside_itself(self, measured: Measurement) -> tuple[str, str]:
        """What is wrong with a plan, and what else is to be said of it, beside a model that
        checkpoints itself."""
        planned, own = measured.measured_peak, measured.unplanned_peak
        if not checkpoints_itself(self.comparer.graph) or planned is None or own is None:
            return "", ""
        worse, told = beside_itself(planned, own)
        return ("", worse) if measured.budget_bytes is None else (worse, told)

    def verdict(self, measured: Measurement, compared: Comparison, moved: Any) -> Measurement:
        """The measurement with the verdict "failed" where it contradicts the plan; `moved` is what
        its last step sent."""
        complaints = [compared.complaint] if compared.complaint else []
        if not measured.within_budget:
            complaints.append(over_budget(measured))
        if not measured.peak_as_predicted:
            complaints.append(
                f"the step takes {measured.measured_peak} bytes where {measured.predicted_peak} "
                "were predicted"
            )
        worse, told = self.beside_itself(measured)
        sent = complaint_of(self.foretold, measured.slow_memory, moved)
        complaints += [said for said in (sent, worse) if said]
        if complaints:
            return replace(measured, verdict=FAILED, sentence=sentence("; ".join(complaints)))
        if self.foretold is not None and measured.waited is not None:
            words = words_of(self.foretold, measured.slow_memory, measured.waited)
            measured = replace(measured, sentence=f"{measured.sentence}; {words}")
        if told:
            measured = replace(measured, sentence=f"{measured.sentence} {sentence(told)}".strip())
        if compared.skipped:
            said = f"{measured.sentence} {sentence(compared.skipped)}".strip()
            measured = replace(measured, sentence=said)
        if compared.difference.bits_equal:
            return measured
        if compared.libraries:
            said = f"{other_kernels(compared)} {sentence(compared.skipped)}".strip()
            return replace(measured, sentence=said)
        blame = " and ".join(self.unordered) if self.device == "cpu" else "CUDA"
        said = (
            f"The original model's results differ from run to run, by up to "
            f"{compared.own.largest:g}, since {blame} adds in no fixed order; the plan's differ "
            f"from them by up to {compared.difference.largest:g}."
        )
        if compared.skipped:
            said = f"{said} {sentence(compared.skipped)}"
        return replace(measured, sentence=said)
