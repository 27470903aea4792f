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

from tightfit.stages.device.devices import kept_random_states
from tightfit.stages.device.factory import Sample
from tightfit.stages.device.trees import flatten
from tightfit.stages.validate.compare import Trail, keep_results, leave_trail
from tightfit.stages.validate.contents import fresh_contents
from tightfit.stages.validate.step import Stepper, random_tangents

OTHER_SEEDS = (4071, 5, 977, 31)
"""Seeds of Python's and NumPy's random numbers where they shall be others. Each round has its own,
so that what depends on them differs somewhere."""

UNKNOWN = (
    "what was captured is not what the model does, for none of the reasons that are looked for: "
    "plan its layers one by one to find the one that differs, and leave that one unplanned"
)
KEEPS = (
    "the forward may keep something from call to call, such as a counter, an attribute or a "
    "buffer that it writes: give it as an argument, or keep it outside of the model"
)
OTHER_CONTENTS = "on other contents of the sample's shapes"


@dataclass(frozen=True)
class Round:
    """A way to run steps of a module on copies of samples. `likely` says what a difference that
    shows in it first comes from, `optional` that the original may be unable to run it, and
    `refusable` that the plan may refuse it at the call. Where it shows no difference, a later one
    that it `contains` is left out; where it shows one, that of the later one says more."""

    name: str
    likely: str
    run: Callable[[nn.Module, Stepper, list[Sample], int], Trail]
    optional: bool = True
    refusable: bool = False
    contains: str = ""


def _as_sampled(model: nn.Module, stepper: Stepper, samples: list[Sample], seed: int) -> Trail:
    with other_numbers(seed):
        return leave_trail(model, stepper, samples, seed)


def _one_step(model: nn.Module, stepper: Stepper, samples: list[Sample], seed: int) -> Trail:
    with other_numbers(seed):
        return leave_trail(model, stepper, samples[:1], seed, steps=1)


def _fresh(model: nn.Module, stepper: Stepper, samples: list[Sample], seed: int) -> Trail:
    contents = [fresh_contents(samples[0], seed + number, tied=True) for number in range(2)]
    with other_numbers(OTHER_SEEDS[0]):
        return leave_trail(model, stepper, contents, seed, steps=1)


def _untied(model: nn.Module, stepper: Stepper, samples: list[Sample], seed: int) -> Trail:
    """A step on contents in which every tensor is one of its own; none where they were so."""
    leaves = [leaf for leaf in flatten(samples[0])[0] if isinstance(leaf, torch.Tensor)]
    if len({id(leaf) for leaf in leaves}) == len(leaves):
        return Trail({}, {}, {})
    with other_numbers(OTHER_SEEDS[1]):
        return leave_trail(model, stepper, [fresh_contents(samples[0], seed)], seed, steps=1)


def _in_flight(
    model: nn.Module,
    stepper: Stepper,
    samples: list[Sample],
    seed: int,
    quick: bool = False,
    alone: bool = False,
) -> Trail:
    """Two forwards on fresh contents, then the backward of the first and of the second. Where that
    is to be all (`quick`) the second has a tensor each where the sample has one in several places,
    which numbers of Python and NumPy were drawn is kept, too, and where `alone` the first output of
    the second alone receives a gradient."""
    contents = [
        fresh_contents(samples[0], seed + 10 + number, tied=not (quick and number))
        for number in range(2)
    ]
    last = replace(stepper, receives=stepper.receives[:1]) if alone else stepper
    trail = Trail({}, {}, {})
    with other_numbers(OTHER_SEEDS[2]):
        torch.manual_seed(seed)
        model.zero_grad(set_to_none=True)
        outputs = [stepper.forward(model, sample) for sample in contents]
        for number, (sample, output) in enumerate(zip(contents, outputs, strict=True)):
            (last if number else stepper).backward(output, random_tangents(seed + number))
            where = f"after backward {number + 1} of 2"
            keep_results(trail, model, sample, output, where)
        if quick:
            drawn = random.getstate(), repr(np.random.get_state(legacy=False))
            trail.buffers["the state of Python's and NumPy's random numbers"] = drawn
    return trail


def _first_alone(model: nn.Module, stepper: Stepper, samples: list[Sample], seed: int) -> Trail:
    """A step in which the first output alone receives a gradient, as a model's own loss does."""
    with other_numbers(OTHER_SEEDS[3]):
        alone = replace(stepper, receives=stepper.receives[:1])
        return leave_trail(model, alone, samples[:1], seed, steps=1)


@contextlib.contextmanager
def other_numbers(seed: int) -> Iterator[None]:
    """Within it Python's and NumPy's random numbers begin at a seed; all random states, PyTorch's
    too, are put back afterwards."""
    python, numpy = random.getstate(), np.random.get_state()
    with kept_random_states():
        random.seed(seed)
        np.random.seed(seed)
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)


ROUNDS = (
    Round(
        "",
        UNKNOWN,
        _as_sampled,
        optional=False,
    ),
    Round(
        "with a tensor each where the sample has one in several places",
        "the plan may take inputs for one tensor that were one in the sample",
        _untied,
        refusable=True,
    ),
    Round(
        "with two forwards before their backwards",
        KEEPS,
        _in_flight,
        contains=OTHER_CONTENTS,
    ),
    Round(
        OTHER_CONTENTS,
        "the forward may depend on the values of its inputs, of which the plan has the "
        "sample's (an `if`, an `.item()`, or a tensor made from numbers)",
        _fresh,
    ),
)

ONE_STEP = replace(ROUNDS[0], run=_one_step)
"""The first of them in short."""


def quick_round(alone: bool) -> Round:
    """Two steps that show most of what all rounds do; `alone` as in `_in_flight`."""
    run = partial(_in_flight, quick=True, alone=alone)
    return Round("with two forwards before their backwards", KEEPS, run)


LOSS_ALONE = Round(
    "with a gradient of the first output alone",
    "where the first output is the loss, plan with loss=lambda output: output[0]",
    _first_alone,
)
"""For a model that gives a loss among other outputs, and is planned without one."""
