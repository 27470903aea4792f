"""Judges a planned module of fused kernels: the bits of the same kernels unplanned, and no further
from exact numbers than a few times what eager is."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from schemas.graph import Graph
from stages.device.devices import kept_random_states
from stages.device.factory import Built, Sample
from stages.device.leaves import map_leaves
from stages.validate.compare import Trail, leave_trail
from stages.validate.comparison import SEED, copied
from stages.validate.step import Stepper

TIMES_EAGER = 4.0
"""How many times as far from float64 as eager the results may be."""
ROUNDING = 16.0
"""Roundings of float32 that are no difference."""
DRAWN = 1e-3
"""The relative difference from eager that is taken where random numbers keep float64 from being
compared with."""


@dataclass(frozen=True)
class Errors:
    """Relative differences in the 2-norm, of all outputs together and of all gradients."""

    outputs: float
    gradients: float

    @property
    def said(self) -> str:
        """For people."""
        return f"{self.outputs:.1e} in outputs and {self.gradients:.1e} in gradients"


def beside_eager(graph: Graph, built: Built, planned: nn.Module) -> tuple[str, str]:
    """A sentence on what is wrong with the numbers of a planned module, "" for nothing, and one
    that says how far they are from float64 and from eager.

    The reference is a copy of the model, its sample and its parameters in float64. A model that
    draws random numbers draws others in float64, and is compared with eager alone."""
    stepper = Stepper.of(graph, built)
    eager = _trail(copied(built.model), stepper, built.samples[:1])
    mine = _trail(copied(planned), stepper, built.samples[:1])
    between = _errors(mine, eager)
    if any(op.random for op in graph.ops):
        wrong = max(between.outputs, between.gradients) > DRAWN
        told = f"fused kernels differ from eager by {between.said}"
        return (f"T{told[1:]}, more than {DRAWN:g}." if wrong else ""), told
    exact = _trail(_double(built.model), stepper, [_double_sample(built.samples[0])])
    own, theirs = _errors(mine, exact), _errors(eager, exact)
    least = ROUNDING * torch.finfo(torch.float32).eps
    wrong = own.outputs > max(TIMES_EAGER * theirs.outputs, least) or own.gradients > max(
        TIMES_EAGER * theirs.gradients, least
    )
    told = f"fused kernels are {own.said} from float64, eager is {theirs.said}"
    return (f"F{told[1:]}, and {TIMES_EAGER:g} times eager's are taken." if wrong else ""), told


def _trail(module: nn.Module, stepper: Stepper, samples: list[Sample]) -> Trail:
    with kept_random_states():
        return leave_trail(module, stepper, samples, SEED, steps=1)


def _double(model: nn.Module) -> nn.Module:
    return copy.deepcopy(model).double()


def _double_sample(sample: Sample) -> Sample:
    def widened(leaf: object) -> object:
        if isinstance(leaf, Tensor) and leaf.is_floating_point():
            return leaf.detach().double().requires_grad_(leaf.requires_grad)
        return leaf

    return map_leaves(widened, sample)


def _errors(mine: Trail, reference: Trail) -> Errors:
    return Errors(
        _error(mine.outputs, reference.outputs), _error(mine.gradients, reference.gradients)
    )


def _error(mine: dict[str, object], reference: dict[str, object]) -> float:
    """The relative difference of all floating-point tensors together; infinite where one is
    missing or has another shape."""
    square = distance = 0.0
    for name, other in reference.items():
        one = mine.get(name)
        if not isinstance(other, Tensor) or not other.is_floating_point():
            continue
        if not isinstance(one, Tensor) or one.shape != other.shape:
            return float("inf")
        wide = other.double()
        square += float(wide.square().sum())
        distance += float((one.double() - wide).square().sum())
    return float((distance / square) ** 0.5) if square else float(distance > 0)
