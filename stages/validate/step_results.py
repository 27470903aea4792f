"""Compares what two modules compute: outputs, gradients and buffers, bit for bit."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from tightfit.stages.runtime.pytree import flatten
from tightfit.stages.torch_utils.model_factory import Sample
from tightfit.stages.validate.step_memory import StepMemory
from tightfit.stages.validate.training_step import RandomOutputGradients, StepRunner, copy_sample


@dataclass(frozen=True)
class StepResults:
    """What some steps of a module left behind, by name: all outputs, gradients and buffers, on the
    host."""

    outputs: dict[str, Any]
    gradients: dict[str, Any]
    buffers: dict[str, Any]


@dataclass(frozen=True)
class ResultDifference:
    """How two trails differ: the largest absolute difference of outputs, gradients and buffers
    (infinite where something is missing or of another shape), whether all bits are equal, and the
    name of the first thing that differs. `share` is the largest as a part of what its dtype
    tolerates (`dtype_tolerance`), infinite for what is no tensor of floating-point numbers."""

    output: float
    gradient: float
    buffer: float
    bits_equal: bool
    first: str
    share: float = 0.0

    @property
    def largest(self) -> float:
        """The largest of all."""
        return max(self.output, self.gradient, self.buffer)

    def within(self, times: float, other: ResultDifference) -> bool:
        """True when outputs, gradients and buffers each differ by no more than `times` what those
        of another difference do, and none is missing."""
        mine = (self.output, self.gradient, self.buffer)
        theirs = (other.output, other.gradient, other.buffer)
        return self.largest < math.inf and all(
            one <= times * limit for one, limit in zip(mine, theirs, strict=True)
        )

    def joined(self, other: ResultDifference) -> ResultDifference:
        """The larger of two differences, each of outputs, gradients and buffers."""
        return ResultDifference(
            max(self.output, other.output),
            max(self.gradient, other.gradient),
            max(self.buffer, other.buffer),
            self.bits_equal and other.bits_equal,
            self.first or other.first,
            max(self.share, other.share),
        )


def record_steps(
    module: nn.Module, stepper: StepRunner, samples: list[Sample], seed: int, steps: int = 2
) -> StepResults:
    """Runs consecutive steps on each sample from a fixed seed and keeps all results.

    The default generator is seeded once a sample, so that a step that draws more or fewer random
    numbers than it should changes the next one. The memory of the stepper takes what the second
    step takes on the first sample.
    """
    trail = StepResults({}, {}, {})
    for index, sample in enumerate(samples):
        torch.manual_seed(seed + index)
        tangents = RandomOutputGradients(seed + index)
        for step in range(steps):
            module.zero_grad(set_to_none=True)
            mine = copy_sample(sample)
            output: Any = None  # of the step before: it is freed before the next one
            if stepper.memory is not None and (index, step) == (0, 1):
                output = _run_measured_step(module, stepper, stepper.memory, mine, tangents)
            else:
                output, _ = stepper.run(module, mine, tangents)
            where = f"sample {index}, step {step}"
            add_step_results(trail, module, mine, output, where, stepper.written_parameters)
    module.zero_grad(set_to_none=True)
    return trail


def _run_measured_step(
    module: nn.Module,
    stepper: StepRunner,
    memory: StepMemory,
    sample: Sample,
    gradients: RandomOutputGradients,
) -> Any:
    """The output of a step whose memory is taken, on `gradients` like those of the last one."""
    gradients.draw_ahead(gradients)
    with memory.of_fresh_step() as begin_backward:
        output = stepper.forward(module, sample)
        begin_backward()
        received = stepper.backward(output, gradients)
    del received
    return output


def add_step_results(
    trail: StepResults,
    module: nn.Module,
    sample: Sample,
    output: Any,
    where: str,
    written: Sequence[str] = (),
) -> None:
    """Adds to a trail what a step has left: outputs, gradients, buffers and the state of PyTorch's
    random numbers on the host as they are now."""
    leaves, structure = flatten(output)
    trail.outputs[f"the structure of the output ({where})"] = structure
    for position, leaf in enumerate(leaves):
        trail.outputs[f"output {position} ({where})"] = _copy_to_host(leaf)
        if isinstance(leaf, Tensor):
            asks = f"whether output {position} requires a gradient ({where})"
            trail.outputs[asks] = leaf.requires_grad
    for name, parameter in module.named_parameters():
        trail.gradients[f"the gradient of {name} ({where})"] = _copy_to_host(parameter.grad)
    for position, leaf in enumerate(flatten(sample)[0]):
        if isinstance(leaf, Tensor) and leaf.requires_grad:
            trail.gradients[f"the gradient of input {position} ({where})"] = _copy_to_host(
                leaf.grad
            )
    for name, buffer in module.named_buffers():
        trail.buffers[f"buffer {name} ({where})"] = _copy_to_host(buffer)
    for name in written:
        trail.buffers[f"parameter {name} ({where})"] = _copy_to_host(module.get_parameter(name))
    trail.buffers[f"the state of random numbers ({where})"] = torch.get_rng_state()


def compare_results(mine: StepResults, other: StepResults) -> ResultDifference:
    """How two trails differ."""
    pairs = (
        (mine.outputs, other.outputs),
        (mine.gradients, other.gradients),
        (mine.buffers, other.buffers),
    )
    differing = [_differences_by_name(left, right) for left, right in pairs]
    output, gradient, buffer = (max(found.values(), default=0.0) for found in differing)
    first = next((name for found in differing for name in found), "")
    shares = (
        _largest_tolerance_share(found, right)
        for found, (_, right) in zip(differing, pairs, strict=True)
    )
    return ResultDifference(output, gradient, buffer, not first, first, max(shares))


def result_digests(trail: StepResults) -> dict[str, str]:
    """The digest of each thing in a trail by its name, 64 hex digits: equal where `same_bits` says
    so. An object that has none is named with "", which equals nothing."""
    everything = {**trail.outputs, **trail.gradients, **trail.buffers}
    return {name: _digest(thing) for name, thing in everything.items()}


def equal_digests(mine: Mapping[str, str], other: Mapping[str, str]) -> bool:
    """Whether two trails were the same, bit for bit, by the digests of what is in them."""
    return mine == other and all(mine.values())


def _digest(thing: Any) -> str:
    if not isinstance(thing, Tensor):
        known = thing is None or type(thing) in (bool, int, float, str)
        text = f"{type(thing).__name__} {thing!r}"
        return hashlib.sha256(text.encode()).hexdigest() if known and thing == thing else ""
    if thing.layout != torch.strided:
        return ""
    if (thing.is_floating_point() or thing.is_complex()) and thing.element_size() > 1:
        thing = thing.masked_fill(thing.isnan(), math.nan) if thing.isnan().any() else thing
    found = hashlib.sha256(f"{thing.dtype} {tuple(thing.shape)}".encode())
    found.update(_byte_view(thing).numpy().data)
    return found.hexdigest()


def has_nan(trail: StepResults) -> bool:
    """Whether an output or a gradient has a NaN, which hides what it should have been."""
    things = (*trail.outputs.values(), *trail.gradients.values())
    numbers = (x for x in things if isinstance(x, Tensor) and dtype_tolerance(x.dtype))
    return any(bool(x.isnan().any()) for x in numbers)


def _largest_tolerance_share(found: dict[str, float], reference: dict[str, Any]) -> float:
    """The largest of differences by name, as a part of what is tolerated."""
    if not found:
        return 0.0
    largest = max(map(_largest_magnitude, reference.values()), default=0.0)
    return max(_tolerance_share(size, reference.get(name), largest) for name, size in found.items())


def _tolerance_share(size: float, reference: Any, largest: float) -> float:
    allowed = dtype_tolerance(reference.dtype) * largest if isinstance(reference, Tensor) else 0.0
    return size / allowed if allowed else math.inf


def dtype_tolerance(dtype: torch.dtype) -> float:
    """What the kernels of two libraries may differ by, beside the largest element of all outputs,
    gradients or buffers: half of the digits that a dtype has; 0 where that is not of floating
    point. A gradient may be nothing but rounding, as that of a bias ahead of a batch norm."""
    numbers = dtype.is_floating_point or dtype.is_complex
    return math.sqrt(torch.finfo(dtype).eps) if numbers else 0.0


def _largest_magnitude(thing: Any) -> float:
    """The largest finite element of a tensor of floating-point numbers; 0 for other things."""
    if not (isinstance(thing, Tensor) and dtype_tolerance(thing.dtype) and thing.numel()):
        return 0.0
    wide = torch.complex128 if thing.is_complex() else torch.float64
    return float(thing.to(wide).abs().nan_to_num(nan=0.0, posinf=0.0).max())


def _differences_by_name(left: dict[str, Any], right: dict[str, Any]) -> dict[str, float]:
    """The largest absolute difference of everything that differs in a bit, by name."""
    found = {}
    for name in dict.fromkeys([*left, *right]):
        if name not in left or name not in right:
            found[name] = math.inf
        elif not same_bits(left[name], right[name]):
            found[name] = max_abs_difference(left[name], right[name])
    return found


def same_bits(mine: Any, other: Any) -> bool:
    """True when two tensors have the same dtype, shape and bytes, where any NaN equals another, or
    two other things are equal."""
    if not (isinstance(mine, Tensor) and isinstance(other, Tensor)):
        return type(mine) is type(other) and bool(mine == other)
    if mine.dtype != other.dtype or mine.shape != other.shape:
        return False
    if torch.equal(_byte_view(mine), _byte_view(other)):
        return True
    if not (mine.is_floating_point() or mine.is_complex()):
        return False
    nan = mine.isnan()
    if not nan.any() or not torch.equal(nan, other.isnan()):
        return False
    return torch.equal(_byte_view(mine[~nan]), _byte_view(other[~nan]))


def max_abs_difference(mine: Any, other: Any) -> float:
    """The largest absolute difference of two tensors, where NaN equals NaN and anything else that
    cannot be subtracted differs by infinity. Integers that differ do so by 1 at least, also where
    they are so large that their difference is rounded away."""
    if not (isinstance(mine, Tensor) and isinstance(other, Tensor)):
        return 0.0 if type(mine) is type(other) and mine == other else math.inf
    if mine.dtype != other.dtype or mine.shape != other.shape:
        return math.inf
    if mine.dtype == torch.float4_e2m1fn_x2:
        return 0.0 if torch.equal(_byte_view(mine), _byte_view(other)) else math.inf
    wide = torch.complex128 if mine.is_complex() else torch.float64
    left, right = mine.to(wide), other.to(wide)
    distance = (left - right).abs()
    if mine.is_floating_point() or mine.is_complex():
        equal = (left == right) | (left.isnan() & right.isnan())
    else:
        equal, distance = mine == other, distance.clamp(min=1.0)
    distance = torch.where(equal, 0.0, distance).nan_to_num(nan=math.inf, posinf=math.inf)
    return float(distance.max()) if distance.numel() else 0.0


def _copy_to_host(leaf: Any) -> Any:
    return leaf.detach().to("cpu", copy=True) if isinstance(leaf, Tensor) else leaf


def _byte_view(tensor: Tensor) -> Tensor:
    return tensor.resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8)
