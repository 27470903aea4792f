"""Compares whole steps: parameters after some of them, updated in the backward and after it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from tightfit.schemas.graph import Graph
from tightfit.schemas.telling import Doing, Telling
from tightfit.stages.device.devices import kept_random_states
from tightfit.stages.device.factory import Built
from tightfit.stages.device.optimiser import in_backward
from tightfit.stages.validate.compare import same_bits
from tightfit.stages.validate.comparison import SEED, sentence
from tightfit.stages.validate.step import Stepper, fresh_sample, random_tangents
from tightfit.stages.validate.unordered import unordered

STEPS = 3
QUICK_STEPS = 2
"""The first one makes the states of an optimiser, the second one uses them."""


def check_updates(
    graph: Graph,
    built: Built,
    load: Callable[[nn.Module], nn.Module],
    optimizer: torch.optim.Optimizer,
    replace_optimizer: Callable[[torch.optim.Optimizer], torch.optim.Optimizer] = in_backward,
    original: Callable[[nn.Module], nn.Module] | None = None,
    report: Telling | None = None,
    full: bool = True,
) -> str:
    """Takes three steps, or unless `full` two, of a copy of the model, or of what `original` makes
    of it, with a copy of its optimiser, and of what `load` makes of another copy with the optimizer
    that `replace_optimizer` gives for a copy. `report` is told of each step.

    Returns "" where all parameters and buffers are equal in every bit, else a sentence with the
    first that differs. Nothing is compared on a GPU, or where the model adds in no fixed order.
    Model, optimiser and random numbers stay as they are.
    """
    if graph.device != "cpu" or unordered(graph):
        return ""
    stepper = Stepper.of(graph, built)
    plain, planned = copy.deepcopy(built.model), copy.deepcopy(built.model)
    expected = copied(optimizer, built.model, plain)
    own = copied(optimizer, built.model, planned)
    found: Any = replace_optimizer(own)
    try:
        first = plain if original is None else original(plain)
        steps = STEPS if full else QUICK_STEPS
        told = Doing(report, 2 * steps)
        for module, each in ((first, expected), (load(planned), found)):
            _train(stepper, module, each, built, steps, told)
    finally:
        found.close()
    other = {**dict(planned.named_parameters()), **dict(planned.named_buffers())}
    for name, tensor in (*plain.named_parameters(), *plain.named_buffers()):
        if not same_bits(tensor.detach(), other[name].detach()):
            return sentence(f"after {steps} steps of {type(optimizer).__name__}, {name} differs")
    return ""


def _train(
    stepper: Stepper,
    module: nn.Module,
    optimizer: torch.optim.Optimizer,
    built: Built,
    steps: int,
    told: Doing,
) -> None:
    with kept_random_states():
        torch.manual_seed(SEED)
        tangent = random_tangents(SEED)
        for _ in range(steps):
            told(f"a step with {type(optimizer).__name__}")
            stepper.run(module, fresh_sample(built.samples[0]), tangent)
            optimizer.step()
            optimizer.zero_grad()


def copied(
    optimizer: torch.optim.Optimizer, model: nn.Module, twin: nn.Module
) -> torch.optim.Optimizer:
    """An optimiser of the twin's parameters with the groups and states of one of the model's."""
    twins = dict(zip(map(id, model.parameters()), twin.parameters(), strict=True))
    groups = [
        {**group, "params": [twins.get(id(p), p.detach().clone()) for p in group["params"]]}
        for group in optimizer.param_groups
    ]
    kind: Any = type(optimizer)
    made: torch.optim.Optimizer = kind(groups)
    made.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    return made
