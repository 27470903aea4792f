"""Why a planned module differs from its original: causes that can be told by running the model."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from tightfit.stages.device.factory import Built, Sample
from tightfit.stages.device.masks import leaves_of_ones, with_masks
from tightfit.stages.device.trees import called, flatten, read_tree
from tightfit.stages.validate.compare import compare, leave_trail
from tightfit.stages.validate.contents import own_copy
from tightfit.stages.validate.rounds import KEEPS, OTHER_SEEDS, Round, other_numbers
from tightfit.stages.validate.step import Stepper

if TYPE_CHECKING:
    from tightfit.stages.validate.comparison import Comparer

RANDOM = (
    "the forward may draw from Python's or NumPy's random numbers, of which the plan has those "
    "that were drawn when it was made: draw from PyTorch's, or give them as an argument"
)
_VARIES = (
    "the model differs from itself when its step is repeated, in {first} by up to {largest:g}, so "
    "that no plan can be equal: train within torch.use_deterministic_algorithms(True), and leave "
    "out what reads the clock or memory that nobody has written"
)
_MASKS = (
    "where {names} holds only ones the model goes a shorter way: plan with ones=True (in a "
    "configuration ones: true), or leave out a mask that masks nothing"
)
_PLAIN = (bool, int, float, complex, str, bytes, type(None))


def cause_of(comparer: Comparer, one: Round, planned: nn.Module, seed: int) -> str:
    """Why a planned module differs in a round, and what to do, as a clause; "" where none of the
    causes that are looked for is found."""
    noted = json.loads(comparer.graph.guards).get("causes", [])
    if noted:
        return "; ".join(noted)
    if not comparer.varying:
        again = compare(*(comparer.run(one, comparer.original_here()) for _ in range(2)))
        if not again.bits_equal:
            return _VARIES.format(first=again.first, largest=again.largest)
    given = (comparer.stepper, comparer.samples, seed)
    if numbers_matter(comparer.original_here(), *given):
        return RANDOM
    names = "" if one.name else _masks_of_ones(comparer, one, planned, seed)
    if names:
        return _MASKS.format(names=names)
    changed = _changed_by_step(comparer.original_here(), comparer.stepper, comparer.samples[0])
    return f"{KEEPS} ({', '.join(changed)} changes in a step)" if changed else ""


def numbers_matter(model: nn.Module, stepper: Stepper, samples: list[Sample], seed: int) -> bool:
    """Whether one step of a model depends on Python's and NumPy's random numbers, or would not run
    with others."""
    trails = []
    for other in (seed, *OTHER_SEEDS):
        with other_numbers(other):
            try:
                trail = leave_trail(copy.deepcopy(model), stepper, samples[:1], seed, steps=1)
            except Exception:  # whatever the model makes of numbers that it cannot take
                return True
            trails.append(trail)
    return any(not compare(trails[0], trail).bits_equal for trail in trails[1:])


def _masks_of_ones(comparer: Comparer, one: Round, planned: nn.Module, seed: int) -> str:
    """The names of the inputs of ones without which a planned module does not differ."""
    leaves = leaves_of_ones(Built(comparer.original, comparer.samples))
    if not leaves:
        return ""
    padded = [with_masks(comparer.samples[0], leaves, ())]
    try:
        mine, theirs = (
            one.run(module, comparer.stepper, padded, seed)
            for module in (copy.deepcopy(planned), comparer.original_here())
        )
    except Exception:  # what does not run on other masks does not show that these are the cause
        return ""
    paths = read_tree(flatten(padded[0])[1]).paths("input")
    names = " or ".join(called(paths[leaf]) for leaf in leaves)
    return names if compare(mine, theirs).bits_equal else ""


def _changed_by_step(model: nn.Module, stepper: Stepper, sample: Sample) -> list[str]:
    """The attributes and buffers of a model that one step changes."""
    before = dict(_state(model))
    with other_numbers(0):
        stepper.run(model, own_copy(sample))
    after = dict(_state(model))
    return [name for name in after if before.get(name) != after[name]]


def _state(model: nn.Module) -> Iterator[tuple[str, Any]]:
    """The plain attributes of a model's modules, and how often each tensor was written, by name."""
    for path, module in model.named_modules():
        for name, value in vars(module).items():
            if isinstance(value, _PLAIN):
                yield f"{path}.{name}".lstrip("."), value
            elif isinstance(value, torch.Tensor):
                yield f"{path}.{name}".lstrip("."), (id(value), value._version)
    for name, tensor in (*model.named_buffers(), *model.named_parameters()):
        yield name, (id(tensor), tensor._version)
