"""Judges a planned module of fused kernels: the bits of the same kernels unplanned, and no further
from exact numbers than a few times what eager is."""

from __future__ import annotations

import copy
import math
from dataclasses import astuple, dataclass

import torch
from torch import Tensor, nn

from tightfit.schemas.graph import Graph
from tightfit.stages.device.devices import is_out_of_memory, kept_random_states
from tightfit.stages.device.factory import Built, Sample
from tightfit.stages.device.leaves import map_leaves
from tightfit.stages.validate.channels import ChannelsLast, convolves_last
from tightfit.stages.validate.compare import Trail, leave_trail
from tightfit.stages.validate.comparison import SEED, copied
from tightfit.stages.validate.step import Stepper

TIMES_EAGER = 4.0
"""How many times as far from float64 as eager the results may be."""
ROUNDING = 16.0
"""Roundings of float32 that are no difference."""
DRAWN = 1e-3
"""The relative difference from eager that is taken, of float32, where there is no float64."""


@dataclass(frozen=True)
class Errors:
    """Relative differences in the 2-norm, of all outputs together and of all gradients."""

    outputs: float
    gradients: float

    @property
    def said(self) -> str:
        """For people."""
        return f"{self.outputs:.1e} in outputs and {self.gradients:.1e} in gradients"

    @property
    def finite(self) -> bool:
        """Whether both are."""
        return math.isfinite(self.outputs) and math.isfinite(self.gradients)

    def within(self, outputs: float, gradients: float) -> bool:
        """Whether both are at most so large."""
        return self.outputs <= outputs and self.gradients <= gradients


def beside_eager(graph: Graph, built: Built, planned: nn.Module) -> tuple[str, str]:
    """A sentence on what is wrong with the numbers of a planned module, "" for nothing, and one
    that says how far they are from float64 and from eager.

    The reference is a copy of the model, its sample and its parameters in float64. A model that
    draws random numbers draws others in float64; it is compared with eager alone, as is one that
    does not run in float64, or whose numbers are not finite. A graph whose convolutions are on
    channels-last tensors may be as far away as eager is with such ones."""
    stepper = Stepper.of(graph, built)
    eager = _trail(copied(built.model), stepper, built.samples[:1])
    mine = _trail(copied(planned), stepper, built.samples[:1])
    exact = None if any(op.random for op in graph.ops) else _exact(built, stepper)
    theirs = _errors(eager, exact) if exact is not None else Errors(math.inf, math.inf)
    if exact is None or not theirs.finite:
        between, most = _errors(mine, eager), _tolerance(graph)
        told = f"used kernels differ from eager by {between.said}"
        return ("" if between.within(most, most) else f"F{told}, more than {most:g}."), f"f{told}"
    own = _errors(mine, exact)
    told = f"used kernels are {own.said} from float64, eager is {theirs.said}"
    if _is_close(own, theirs):
        return "", f"f{told}"
    trail = _channels_last(graph, built, stepper)
    last = Errors(math.inf, math.inf) if trail is None else _errors(trail, exact)
    if last.finite:
        theirs = Errors(*map(max, zip(astuple(theirs), astuple(last), strict=True)))
        told += f", and {last.said} with channels-last convolutions"
    wrong = (
        "" if _is_close(own, theirs) else f"F{told}, and {TIMES_EAGER:g} times eager's are taken."
    )
    return wrong, f"f{told}"


def _is_close(own: Errors, theirs: Errors) -> bool:
    least = ROUNDING * torch.finfo(torch.float32).eps
    return own.within(
        max(TIMES_EAGER * theirs.outputs, least), max(TIMES_EAGER * theirs.gradients, least)
    )


def _channels_last(graph: Graph, built: Built, stepper: Stepper) -> Trail | None:
    """What the model leaves with channels-last convolutions; None where the graph has none, or the
    model does not run with them."""
    if not convolves_last(graph):
        return None
    try:
        with ChannelsLast():
            return _trail(copied(built.model), stepper, built.samples[:1])
    except RuntimeError as error:
        if is_out_of_memory(error):
            raise
        return None


def _exact(built: Built, stepper: Stepper) -> Trail | None:
    """What the model leaves in float64; None where it does not run in it."""
    try:
        return _trail(_double(built.model), stepper, [_double_sample(built.samples[0])])
    except RuntimeError as error:
        if is_out_of_memory(error):
            raise
        return None


def _tolerance(graph: Graph) -> float:
    """The relative difference from eager that is taken where there is no exact reference."""
    dtypes = {getattr(torch, value.dtype) for value in graph.values}
    coarsest = max(torch.finfo(dtype).eps for dtype in dtypes if dtype.is_floating_point)
    return max(DRAWN, TIMES_EAGER * coarsest)


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
    """Differences of what is left; what a forward writes counts as an output."""
    return Errors(
        _error({**mine.outputs, **mine.buffers}, {**reference.outputs, **reference.buffers}),
        _error(mine.gradients, reference.gradients),
    )


def _error(mine: dict[str, object], reference: dict[str, object]) -> float:
    """The relative difference of all tensors of real or complex numbers together; infinite where
    one is missing, has another shape, or other numbers that are not finite."""
    square = distance = 0.0
    for name, other in reference.items():
        one = mine.get(name)
        if not isinstance(other, Tensor) or not (other.is_floating_point() or other.is_complex()):
            continue
        if not isinstance(one, Tensor) or one.shape != other.shape:
            return math.inf
        narrow, wide = _real(one), _real(other)
        odd = ~wide.isfinite()
        alike = (narrow == wide) | (narrow.isnan() & wide.isnan())
        if not (alike[odd].all() and narrow[~odd].isfinite().all()):
            return math.inf
        square += float(wide[~odd].square().sum())
        distance += float((narrow[~odd] - wide[~odd]).square().sum())
    return (distance / square) ** 0.5 if square else float(distance > 0)


def _real(tensor: Tensor) -> Tensor:
    """The numbers of a tensor in float64, those of complex ones as pairs."""
    if tensor.is_complex():
        return torch.view_as_real(tensor.to(torch.complex128).resolve_conj())
    return tensor.double()
