"""Judges a planned module of fused kernels: the bits of the keep-all step with the same kernels,
and no further from exact numbers than a few times what eager is."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from tightfit.schemas.graph.training_graph import Graph
from tightfit.stages.torch_utils.devices import is_out_of_memory, preserve_random_states
from tightfit.stages.torch_utils.model_factory import BuiltModel, Sample, map_leaves
from tightfit.stages.validate.comparison import SEED, copy_model
from tightfit.stages.validate.step_results import StepResults, record_steps
from tightfit.stages.validate.training_step import StepRunner
from tightfit.util.tracebacks import describe_error

_CHANNELS_LAST_FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}
"""The form by the number of dimensions."""
_CONVOLUTIONS = {
    torch.conv2d,
    torch.conv3d,
    torch.conv_transpose2d,
    torch.conv_transpose3d,
    torch.convolution,
}


class ChannelsLastConvolutions(TorchFunctionMode):
    """Within it convolutions of two and three dimensions read channels-last copies, and what comes
    after them lies as ATen lets it. A view that such a tensor does not have is a copy."""

    def __torch_function__(
        self,
        function: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if function in _CONVOLUTIONS:
            args = tuple(_to_channels_last(leaf) for leaf in args)
            return function(
                *args, **{name: _to_channels_last(leaf) for name, leaf in (kwargs or {}).items()}
            )
        if function is Tensor.view and not kwargs and torch.dtype not in map(type, args):
            return Tensor.reshape(*args)
        return function(*args, **(kwargs or {}))


def has_channels_last_convolution(graph: Graph) -> bool:
    """Whether a convolution of a graph reads a tensor that is channels last and not contiguous."""
    return any(
        _is_channels_last(graph.values[value].shape, graph.values[value].strides)
        for op in graph.ops
        if op.target == "aten.convolution.default"
        for value in op.inputs
    )


def _is_channels_last(shape: Sequence[int], strides: Sequence[int]) -> bool:
    form = _CHANNELS_LAST_FORMATS.get(len(shape))
    if form is None:
        return False
    like = torch.empty_strided(shape, strides, device="meta")
    return like.is_contiguous(memory_format=form) and not like.is_contiguous()


def _to_channels_last(leaf: Any) -> Any:
    if not isinstance(leaf, Tensor) or leaf.dim() not in _CHANNELS_LAST_FORMATS:
        return leaf
    return leaf.contiguous(memory_format=_CHANNELS_LAST_FORMATS[leaf.dim()])


MAX_ERROR_RATIO = 4.0
"""How many times as far from float64 as eager the results may be."""
ROUNDING_EPSILONS = 16.0
"""Roundings of float32 that are no difference."""
EAGER_TOLERANCE = 1e-3
"""The relative difference from eager that is taken, of float32, where there is no float64."""


@dataclass(frozen=True)
class RelativeErrors:
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


def compare_with_eager(graph: Graph, built: BuiltModel, planned: nn.Module) -> tuple[str, str]:
    """A sentence on what is wrong with the numbers of a planned module, "" for nothing, and one
    that says how far they are from float64 and from eager.

    The reference is a copy of the model, its sample and its parameters in float64. A model that
    draws random numbers draws others in float64; it is compared with eager alone, as is one that
    does not run in float64, or whose numbers are not finite. A graph whose convolutions are on
    channels-last tensors may be as far away as eager is with such ones."""
    stepper = StepRunner.of(graph, built)
    eager = _record_step(copy_model(built.model), stepper, built.samples[:1])
    mine = _record_step(copy_model(planned), stepper, built.samples[:1])
    exact = None if any(op.random for op in graph.ops) else _run_float64(built, stepper)
    theirs = (
        _relative_errors(eager, exact) if exact is not None else RelativeErrors(math.inf, math.inf)
    )
    if exact is None or not theirs.finite:
        between, most = _relative_errors(mine, eager), _eager_tolerance(graph)
        told = f"used kernels differ from eager by {between.said}"
        return ("" if between.within(most, most) else f"F{told}, more than {most:g}."), f"f{told}"
    own = _relative_errors(mine, exact)
    told = f"used kernels are {own.said} from float64, eager is {theirs.said}"
    if _is_close_to_eager(own, theirs):
        return "", f"f{told}"
    trail = _run_channels_last(graph, built, stepper)
    last = RelativeErrors(math.inf, math.inf) if trail is None else _relative_errors(trail, exact)
    if last.finite:
        theirs = RelativeErrors(*map(max, zip(astuple(theirs), astuple(last), strict=True)))
        told += f", and {last.said} with channels-last convolutions"
    wrong = (
        ""
        if _is_close_to_eager(own, theirs)
        else f"F{told}, and {MAX_ERROR_RATIO:g} times eager's are taken."
    )
    return wrong, f"f{told}"


def _is_close_to_eager(own: RelativeErrors, theirs: RelativeErrors) -> bool:
    least = ROUNDING_EPSILONS * torch.finfo(torch.float32).eps
    return own.within(
        max(MAX_ERROR_RATIO * theirs.outputs, least), max(MAX_ERROR_RATIO * theirs.gradients, least)
    )


def _run_channels_last(graph: Graph, built: BuiltModel, stepper: StepRunner) -> StepResults | None:
    """What the model leaves with channels-last convolutions; None where the graph has none, or the
    model does not run with them."""
    if not has_channels_last_convolution(graph):
        return None
    try:
        with ChannelsLastConvolutions():
            return _record_step(copy_model(built.model), stepper, built.samples[:1])
    except RuntimeError as error:
        if is_out_of_memory(error):
            raise
        return None


def _run_float64(built: BuiltModel, stepper: StepRunner) -> StepResults | None:
    """What the model leaves in float64; None where it does not run in it."""
    try:
        return _record_step(_double_model(built.model), stepper, [_double_sample(built.samples[0])])
    except RuntimeError as error:
        if is_out_of_memory(error):
            raise
        return None


def _eager_tolerance(graph: Graph) -> float:
    """The relative difference from eager that is taken where there is no exact reference."""
    dtypes = {getattr(torch, value.dtype) for value in graph.values}
    coarsest = max(torch.finfo(dtype).eps for dtype in dtypes if dtype.is_floating_point)
    return max(EAGER_TOLERANCE, MAX_ERROR_RATIO * coarsest)


def _record_step(module: nn.Module, stepper: StepRunner, samples: list[Sample]) -> StepResults:
    with preserve_random_states():
        return record_steps(module, stepper, samples, SEED, steps=1)


def _double_model(model: nn.Module) -> nn.Module:
    return copy.deepcopy(model).double()


def _double_sample(sample: Sample) -> Sample:
    def widened(leaf: object) -> object:
        if isinstance(leaf, Tensor) and leaf.is_floating_point():
            return leaf.detach().double().requires_grad_(leaf.requires_grad)
        return leaf

    return map_leaves(widened, sample)


def _relative_errors(mine: StepResults, reference: StepResults) -> RelativeErrors:
    """Differences of what is left; what a forward writes counts as an output."""
    return RelativeErrors(
        _relative_error(
            {**mine.outputs, **mine.buffers}, {**reference.outputs, **reference.buffers}
        ),
        _relative_error(mine.gradients, reference.gradients),
    )


def _relative_error(mine: dict[str, object], reference: dict[str, object]) -> float:
    """The relative difference of all tensors of real or complex numbers together; infinite where
    one is missing, has another shape, or other numbers that are not finite."""
    square = distance = 0.0
    for name, other in reference.items():
        one = mine.get(name)
        if not isinstance(other, Tensor) or not (other.is_floating_point() or other.is_complex()):
            continue
        if not isinstance(one, Tensor) or one.shape != other.shape:
            return math.inf
        narrow, wide = _as_float64(one), _as_float64(other)
        odd = ~wide.isfinite()
        alike = (narrow == wide) | (narrow.isnan() & wide.isnan())
        if not (alike[odd].all() and narrow[~odd].isfinite().all()):
            return math.inf
        square += float(wide[~odd].square().sum())
        distance += float((narrow[~odd] - wide[~odd]).square().sum())
    return (distance / square) ** 0.5 if square else float(distance > 0)


def _as_float64(tensor: Tensor) -> Tensor:
    """The numbers of a tensor in float64, those of complex ones as pairs."""
    if tensor.is_complex():
        return torch.view_as_real(tensor.to(torch.complex128).resolve_conj())
    return tensor.double()


def try_compare_with_eager(graph: Graph, built: BuiltModel, planned: nn.Module) -> tuple[str, str]:
    """The sentences of `compare_with_eager`; the first says so where nothing can be compared."""
    try:
        return compare_with_eager(graph, built, planned)
    except RuntimeError as error:
        why = describe_error(error)
        return f"The step of fused kernels cannot be compared with eager ({why}).", ""
