"""Compares whole steps: parameters after some of them, updated in the backward and after it."""

from __future__ import annotations

import contextlib
import copy
import gc
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from tightfit.schemas.graph.training_graph import Graph
from tightfit.stages.runtime.offload.backward_optimizer import in_backward
from tightfit.stages.torch_utils.devices import preserve_random_states, synchronize_device
from tightfit.stages.torch_utils.memory_meter import MemoryUsage, memory_session
from tightfit.stages.torch_utils.model_factory import BuiltModel, Sample
from tightfit.stages.validate.comparison import SEED, format_sentence
from tightfit.stages.validate.measure import TIMED_STEP
from tightfit.stages.validate.predictions import find_nondeterministic_ops
from tightfit.stages.validate.step_results import same_bits
from tightfit.stages.validate.training_step import (
    RandomOutputGradients,
    StepRunner,
    detach_sample,
)
from tightfit.util.progress import LabeledProgressCounter, ProgressCallback

STEPS = 3
QUICK_STEPS = 2
"""The first one makes the states of an optimizer, the second one uses them."""


def compare_optimizer_steps(
    graph: Graph,
    built: BuiltModel,
    load: Callable[[nn.Module], nn.Module],
    optimizer: torch.optim.Optimizer,
    replace_optimizer: Callable[[torch.optim.Optimizer], torch.optim.Optimizer] = in_backward,
    original: Callable[[nn.Module], nn.Module] | None = None,
    report: ProgressCallback | None = None,
    full: bool = True,
) -> str:
    """Takes three steps, or unless `full` two, of a copy of the model, or of what `original` makes
    of it, with a copy of its optimizer, and of what `load` makes of another copy with the optimizer
    that `replace_optimizer` gives for a copy. `report` is told of each step.

    Returns "" where all parameters and buffers are equal in every bit, else a sentence with the
    first that differs. Nothing is compared on a GPU, or where the model adds in no fixed order.
    Model, optimizer and random numbers stay as they are.
    """
    if graph.device != "cpu" or find_nondeterministic_ops(graph):
        return ""
    stepper = StepRunner.of(graph, built)
    plain, planned = copy.deepcopy(built.model), copy.deepcopy(built.model)
    expected = copy_optimizer(optimizer, built.model, plain)
    own = copy_optimizer(optimizer, built.model, planned)
    found: Any = replace_optimizer(own)
    try:
        first = plain if original is None else original(plain)
        steps = STEPS if full else QUICK_STEPS
        told = LabeledProgressCounter(report, 2 * steps)
        for module, each in ((first, expected), (load(planned), found)):
            _run_optimizer_steps(stepper, module, each, built, steps, told)
    finally:
        found.close()
    other = {**dict(planned.named_parameters()), **dict(planned.named_buffers())}
    for name, tensor in (*plain.named_parameters(), *plain.named_buffers()):
        if not same_bits(tensor.detach(), other[name].detach()):
            return format_sentence(
                f"after {steps} steps of {type(optimizer).__name__}, {name} differs"
            )
    return ""


def _run_optimizer_steps(
    stepper: StepRunner,
    module: nn.Module,
    optimizer: torch.optim.Optimizer,
    built: BuiltModel,
    steps: int,
    told: LabeledProgressCounter,
) -> None:
    with preserve_random_states():
        torch.manual_seed(SEED)
        tangent = RandomOutputGradients(SEED)
        for _ in range(steps):
            told(f"a step with {type(optimizer).__name__}")
            stepper.run(module, detach_sample(built.samples[0]), tangent)
            optimizer.step()
            optimizer.zero_grad()


def copy_optimizer(
    optimizer: torch.optim.Optimizer, model: nn.Module, twin: nn.Module
) -> torch.optim.Optimizer:
    """An optimizer of the twin's parameters with the groups and states of one of the model's."""
    twins = dict(zip(map(id, model.parameters()), twin.parameters(), strict=True))
    groups = [
        {**group, "params": [twins.get(id(p), p.detach().clone()) for p in group["params"]]}
        for group in optimizer.param_groups
    ]
    kind: Any = type(optimizer)
    made: torch.optim.Optimizer = kind(groups)
    made.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    return made


@dataclass
class OptimizerSteps:
    """Whole training steps of a module with its optimizer, of some microbatches each; `held` is
    what the last one left with the caller. Those that are measured are `told` by a `name`."""

    stepper: StepRunner
    sample: Sample
    module: nn.Module
    optimizer: Any
    name: str
    told: LabeledProgressCounter
    microbatches: int = 1
    held: list[Any] = field(default_factory=list)

    def run(self) -> None:
        """One step."""
        for number in range(self.microbatches):
            self.microbatch(number)

    def microbatch(self, number: int) -> None:
        """One microbatch; the last one ends the step."""
        self.held = []
        last = number == self.microbatches - 1
        with contextlib.nullcontext() if last else accumulate_gradients(self.optimizer):
            self.held = [self.stepper.run(self.module, self.sample)]
        if last:
            self.optimizer.step()
            self.optimizer.zero_grad()

    def microbatch_usages(self, device: str) -> list[MemoryUsage]:
        """The memory of each microbatch of a step above what was there when it began, with what the
        caller holds of it."""
        found = []
        for number in range(self.microbatches):
            self.held = []
            self.told(f"the memory of {self.name}")
            gc.collect()
            with memory_session(device, lines=True) as running, running.section("step"):
                self.microbatch(number)
            self.held = []
            found.append(running.section_usage("step"))
        return found

    def seconds(self, device: str) -> float:
        """The time of one step."""
        self.held = []
        self.told(TIMED_STEP)
        synchronize_device(device)
        begin = time.perf_counter()
        self.run()
        synchronize_device(device)
        seconds = time.perf_counter() - begin
        self.held = []
        return seconds

    @property
    def waited(self) -> float:
        """Seconds for which its steps have waited for the offload target so far."""
        found: float = getattr(self.optimizer, "waited_seconds", 0.0)
        return found


def accumulate_gradients(optimizer: Any) -> contextlib.AbstractContextManager[None]:
    """Within it gradients of microbatches add up, as they do anyway in a plain step."""
    if not hasattr(optimizer, "accumulating"):
        return contextlib.nullcontext()
    found: contextlib.AbstractContextManager[None] = optimizer.accumulating()
    return found
