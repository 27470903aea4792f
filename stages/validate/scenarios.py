"""The rounds in which a planned module is compared with its original, and what a difference in
each of them is likely to come from."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from torch import nn

from tightfit.stages.runtime.pytree import flatten
from tightfit.stages.torch_utils.devices import preserve_all_random_states
from tightfit.stages.torch_utils.model_factory import Sample
from tightfit.stages.validate.step_results import StepResults, add_step_results, record_steps
from tightfit.stages.validate.training_step import (
    RandomOutputGradients,
    StepRunner,
    randomize_sample,
)

SCENARIO_SEEDS = (4071, 5, 977, 31)
"""Seeds of Python's and NumPy's random numbers where they shall be others. Each round has its own,
so that what depends on them differs somewhere."""

UNKNOWN_CAUSE = (
    "what was captured is not what the model does, for none of the reasons that are looked for: "
    "plan its layers one by one to find the one that differs, and leave that one out of the plan"
)
STATEFUL_FORWARD_CAUSE = (
    "the forward may keep something from call to call, such as a counter, an attribute or a "
    "buffer that it writes: give it as an argument, or keep it outside of the model"
)
RANDOMIZED_INPUTS = "on other contents of the sample's shapes"


@dataclass(frozen=True)
class Scenario:
    """A way to run steps of a module on copies of samples. `likely` says what a difference that
    shows in it first comes from, `may_reject` that the plan may refuse it at the call. Where it
    shows no difference, a later one that it `contains` is left out; where it shows one, that of the
    later one says more."""

    name: str
    likely_cause: str
    run: Callable[[nn.Module, StepRunner, list[Sample], int], StepResults]
    may_reject: bool = False
    contains: str = ""


def _run_on_samples(
    model: nn.Module, stepper: StepRunner, samples: list[Sample], seed: int
) -> StepResults:
    with seed_host_random(seed):
        return record_steps(model, stepper, samples, seed)


def _run_one_step(
    model: nn.Module, stepper: StepRunner, samples: list[Sample], seed: int
) -> StepResults:
    with seed_host_random(seed):
        return record_steps(model, stepper, samples[:1], seed, steps=1)


def _run_randomized(
    model: nn.Module, stepper: StepRunner, samples: list[Sample], seed: int
) -> StepResults:
    contents = [randomize_sample(samples[0], seed + number, tied=True) for number in range(2)]
    with seed_host_random(SCENARIO_SEEDS[0]):
        return record_steps(model, stepper, contents, seed, steps=1)


def _run_untied(
    model: nn.Module, stepper: StepRunner, samples: list[Sample], seed: int
) -> StepResults:
    """A step on contents in which every tensor is one of its own; none where they were so."""
    leaves = [leaf for leaf in flatten(samples[0])[0] if isinstance(leaf, torch.Tensor)]
    if len({id(leaf) for leaf in leaves}) == len(leaves):
        return StepResults({}, {}, {})
    with seed_host_random(SCENARIO_SEEDS[1]):
        return record_steps(model, stepper, [randomize_sample(samples[0], seed)], seed, steps=1)


def _run_interleaved(
    model: nn.Module,
    stepper: StepRunner,
    samples: list[Sample],
    seed: int,
    quick: bool = False,
    alone: bool = False,
) -> StepResults:
    """Two forwards on fresh contents, then the backward of the first and of the second. Where that
    is to be all (`quick`) the second has a tensor each where the sample has one in several places,
    which numbers of Python and NumPy were drawn is kept, too, and where `alone` the first output of
    the second alone receives a gradient."""
    contents = [
        randomize_sample(samples[0], seed + 10 + number, tied=not (quick and number))
        for number in range(2)
    ]
    last = (
        replace(stepper, outputs_with_gradient=stepper.outputs_with_gradient[:1])
        if alone
        else stepper
    )
    trail = StepResults({}, {}, {})
    # Each sample has gradients of its inputs anew: those of the second one do not add up.
    memory = None if _requires_gradient(contents[1]) else stepper.memory
    measuring = contextlib.nullcontext(_do_nothing) if memory is None else memory.of_two_steps()
    with seed_host_random(SCENARIO_SEEDS[2]), measuring as mark:
        torch.manual_seed(seed)
        model.zero_grad(set_to_none=True)
        outputs = [stepper.forward(model, sample) for sample in contents]
        gradients = [RandomOutputGradients(seed + number) for number in range(2)]
        for number, (sample, output) in enumerate(zip(contents, outputs, strict=True)):
            if number:
                gradients[1].draw_ahead(gradients[0])
                mark()
            received = (last if number else stepper).backward(output, gradients[number])
            if number:
                mark()
            del received
            where = f"after backward {number + 1} of 2"
            add_step_results(trail, model, sample, output, where, stepper.written_parameters)
        if quick:
            drawn = random.getstate(), repr(np.random.get_state(legacy=False))
            trail.buffers["the state of Python's and NumPy's random numbers"] = drawn
    return trail


def _do_nothing() -> None:
    """Marks nothing."""


def _requires_gradient(sample: Sample) -> bool:
    """Whether a tensor of a sample is a leaf that gets a gradient, which each sample has anew."""
    leaves = flatten(sample)[0]
    return any(isinstance(leaf, torch.Tensor) and leaf.requires_grad for leaf in leaves)


def _run_first_output_only(
    model: nn.Module, stepper: StepRunner, samples: list[Sample], seed: int
) -> StepResults:
    """A step in which the first output alone receives a gradient, as a model's own loss does."""
    with seed_host_random(SCENARIO_SEEDS[3]):
        alone = replace(stepper, outputs_with_gradient=stepper.outputs_with_gradient[:1])
        return record_steps(model, alone, samples[:1], seed, steps=1)


@contextlib.contextmanager
def seed_host_random(seed: int) -> Iterator[None]:
    """Within it Python's and NumPy's random numbers begin at a seed; all random states, PyTorch's
    too, are put back afterwards."""
    with preserve_all_random_states():
        random.seed(seed)
        np.random.seed(seed)
        yield


SCENARIOS = (
    Scenario(
        "",
        UNKNOWN_CAUSE,
        _run_on_samples,
    ),
    Scenario(
        "with a tensor each where the sample has one in several places",
        "the plan may take inputs for one tensor that were one in the sample",
        _run_untied,
        may_reject=True,
    ),
    Scenario(
        "with two forwards before their backwards",
        STATEFUL_FORWARD_CAUSE,
        _run_interleaved,
        contains=RANDOMIZED_INPUTS,
    ),
    Scenario(
        RANDOMIZED_INPUTS,
        "the forward may depend on the values of its inputs, of which the plan has the "
        "sample's (an `if`, an `.item()`, or a tensor made from numbers)",
        _run_randomized,
    ),
)

ONE_STEP_SCENARIO = replace(SCENARIOS[0], run=_run_one_step)
"""The first of them in short."""


def quick_scenario(alone: bool) -> Scenario:
    """Two steps that show most of what all rounds do; `alone` as in `_run_interleaved`."""
    run = partial(_run_interleaved, quick=True, alone=alone)
    return Scenario("with two forwards before their backwards", STATEFUL_FORWARD_CAUSE, run)


LOSS_ONLY_SCENARIO = Scenario(
    "with a gradient of the first output alone",
    "where the first output is the loss, plan with loss=lambda output: output[0]",
    _run_first_output_only,
)
"""For a model that gives a loss among other outputs, and is planned without one."""
