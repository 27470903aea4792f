"""Plans a case for two budgets, and compares the planned modules with eager bit for bit."""

from __future__ import annotations

import re
import traceback
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tests.battery import outcome as battery
from tests.battery.case import Case
from tests.battery.outcome import Outcome, observe, refusal
from tests.battery.registry import Use
from tests.battery.strategies import call_plan
from tests.battery.use_context import Run, differentiable, tangent, tensors
from tightfit.stages.runtime.pytree import flatten
from tightfit.stages.validate.measure import measure_memory
from tightfit.stages.validate.training_step import StepRunner, detach_sample
from tightfit.util.errors import ConfigError, ScheduleError

EQUAL, UNSUPPORTED, WRONG, RAW, SKIPPED = "equal", "unsupported", "wrong", "raw", "skipped"
KINDS = (EQUAL, UNSUPPORTED, WRONG, RAW, SKIPPED)
BAD = (WRONG, RAW)
_KINDS = {
    battery.EQUAL: EQUAL,
    battery.REFUSED: UNSUPPORTED,
    battery.RAW: RAW,
    battery.VARIES: SKIPPED,
    battery.BOTH: SKIPPED,
}
"""What the outcomes of the battery are here; every other one is wrong."""
BUDGETS = ("min", "50%")
_SMALLEST = re.compile(r"budget known to work for .+? with \w+ is ([\d.]+%|[\d,]+)")
TRACE_LINES = 12
"""Lines at the end of a traceback that are kept."""
NO_GRADIENT = "nothing that it returns has a gradient"


@dataclass(frozen=True)
class Judgment:
    """What came of a case; `peaks` are the bytes of the step by budget, with those of the step that
    keeps everything, and `trace` is the end of the traceback of a raw error."""

    kind: str
    detail: str = ""
    peaks: dict[str, int | None] = field(default_factory=dict)
    trace: str = ""


def judge_case(case: Case, store: Path, namespaces: tuple[str, ...] = ()) -> Judgment:
    """Plans a case at the smallest budget and at half, and compares outputs, gradients, buffers and
    random states of two steps with eager, and the peak with the predicted one. Where half is
    too small, the budget that the message names takes its place."""
    if skipped := _skipped(case):
        return Judgment(SKIPPED, skipped)
    peaks: dict[str, int | None] = {}
    planner = _Planner(case, store, namespaces, peaks)
    for budget in BUDGETS:
        found = planner.judge(budget)
        if named := _SMALLEST.search(found.detail) if found.kind == UNSUPPORTED else None:
            found = planner.judge(named[1].replace(",", ""))
            if found.kind == UNSUPPORTED:
                found = Judgment(WRONG, f"{named[1]}, which was named, is refused: {found.detail}")
        if found.kind != EQUAL:
            return Judgment(found.kind, f"{budget}: {found.detail}", peaks, found.trace)
    return Judgment(EQUAL, "", peaks)


def two_steps(run: Run) -> None:
    """Two forwards and backwards; gradients of parameters accumulate."""
    for step in range(2):
        sample = run.batch()
        output = run.call(sample)
        run.say(f"output {step}", output)
        if run.case.loss is not None:
            run.loss(output).backward()
        else:
            _send_back(run, output)
        given = [tensor.grad for tensor in tensors(sample) if tensor.requires_grad]
        run.say(f"gradients of inputs {step}", given)
        run.gradients(f"of step {step}")


TWO_STEPS = Use("two steps", "conformance", two_steps, fast=False)


def _send_back(run: Run, output: Any) -> None:
    """Sends a gradient back from each output that takes one, in the strides of the output."""
    roots = differentiable(output)
    run.need(roots)
    given = [
        torch.empty_like(root).copy_(tangent(root.detach(), seed))
        for seed, root in enumerate(roots)
    ]
    torch.autograd.backward(roots, given)


def _skipped(case: Case) -> str:
    """Why a case says nothing: eager raises or differs from itself, or there is no gradient."""
    try:
        first, error = observe(case, TWO_STEPS, lambda model: model)
        if isinstance(error, battery.NotApplicable):
            return NO_GRADIENT
        if error is not None:
            return f"eager raises {type(error).__name__}: {' '.join(str(error).split())[:200]}"
        again, _ = observe(case, TWO_STEPS, lambda model: model)
    except Exception as raised:
        return f"eager raises {type(raised).__name__}: {' '.join(str(raised).split())[:200]}"
    differs = again.trail.difference(first.trail)
    return f"eager differs from itself: {differs}" if differs else ""


@dataclass(frozen=True)
class _Planner:
    """Plans a case, with operators of some namespaces, and adds the `peaks` of its plans."""

    case: Case
    store: Path
    namespaces: tuple[str, ...]
    peaks: dict[str, int | None]

    def judge(self, budget: str) -> Judgment:
        """What came of one budget."""
        options: dict[str, Any] = {"progress": False, "operators": self.namespaces}
        if self.case.loss is None:
            options["loss_room"] = 0
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                load, plan = call_plan(self.case, self.store, budget, **options)
            except Exception as error:
                return _refused(error, budget)
            self.peaks.update({budget: plan.peak, "keep all": plan.keep_all.peak})
            found = battery.judge(self.case, TWO_STEPS, load)
            if found.kind != battery.EQUAL:
                return Judgment(_KINDS.get(found.kind, WRONG), found.detail)
            try:
                measured = _measure_peak(self.case, load)
            except Exception as error:
                return _refused(error, budget)
        if plan.peak is not None and measured > plan.peak:
            return Judgment(WRONG, f"the step takes {measured} bytes, {plan.peak} were predicted")
        return Judgment(EQUAL)


def _refused(error: Exception, budget: str) -> Judgment:
    """What an error of planning is: a refusal in one sentence, or a raw one."""
    found: Outcome = refusal(error)
    kind = _KINDS[found.kind]
    if budget == BUDGETS[0] and isinstance(error, ConfigError) and _SMALLEST.search(str(error)):
        kind = WRONG
    if isinstance(error, ScheduleError):  # which says nothing to people
        kind = RAW
    lines = traceback.format_exception(error)[-TRACE_LINES:] if kind == RAW else []
    return Judgment(kind, found.detail, trace="".join(lines))


def _measure_peak(case: Case, load: battery.Load) -> int:
    """The bytes of one step of the planned module above what is there before it."""
    sample = case.sample(0)
    torch.manual_seed(0)
    module = load(case.make(planned=True))
    with case.around():
        args, kwargs = detach_sample(sample)
        leaves = flatten(module(*args, **kwargs))[0]
        first: dict[int, int] = {}
        for place, leaf in enumerate(leaves):
            if isinstance(leaf, Tensor) and leaf.requires_grad:
                first.setdefault(id(leaf), place)
        del leaves
        stepper = StepRunner(list(first.values()), case.loss)
        return measure_memory(module, stepper, detach_sample(sample), "cpu")[0].peak
