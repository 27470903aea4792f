"""One training step of a module, run in the way that all memory figures assume."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from tightfit.schemas.graph.training_graph import LOSS_SCALAR_BYTES, NO_VALUE, Graph
from tightfit.stages.runtime.pytree import flatten
from tightfit.stages.runtime.side_effects import NO_SIDE_EFFECTS, SideEffects
from tightfit.stages.torch_utils.model_factory import BuiltModel, Sample, map_leaves
from tightfit.stages.torch_utils.step_loss import graph_side_effects, step_loss
from tightfit.stages.validate.step_memory import StepMemory
from tightfit.util.errors import ModelError

MakeOutputGradient = Callable[[Tensor], Tensor]
"""Makes the gradient that arrives at an output."""


@dataclass(frozen=True)
class StepRunner:
    """Runs steps of a model or of its plan.

    `receives` are the positions, among the leaves of the output, that get a gradient, each tensor
    once. Without a loss their gradients are made after the forward, and the `loss_room` of the
    graph is taken when they are there, as by a loss, and written to with `fill_loss_room`; outputs,
    these gradients and the loss are held by the caller until the step has ended. With
    `side_effects` the output is a pair, as that of the graph, and what each counter went up.
    `written_parameters` are those that the forward writes. `memory` takes what steps that a
    comparison runs take of it.
    """

    outputs_with_gradient: Sequence[int]
    loss: Callable[[Any], Tensor] | None
    loss_room: int = 0
    fill_loss_room: bool = False
    side_effects: SideEffects = NO_SIDE_EFFECTS
    written_parameters: Sequence[str] = ()
    memory: StepMemory | None = None

    @classmethod
    def of(cls, graph: Graph, built: BuiltModel) -> StepRunner:
        """The stepper of a traced model; raises ModelError when the loss is not the traced one."""
        if graph.has_loss != (built.loss is not None):
            raise ModelError(
                f"{built.label} returns {'no' if graph.has_loss else 'a'} loss, unlike when "
                f"{graph.model} was traced"
            )
        first: dict[int, int] = {}
        for index, output in enumerate(graph.outputs):
            if output.tangent != NO_VALUE:
                first.setdefault(output.tangent, index)
        written = [graph.values[value] for op in graph.ops for value in op.writes]
        averaged = sorted({value.path for value in written if value.kind == "parameter"})
        effects = graph_side_effects(graph)
        return cls(
            list(first.values()),
            step_loss(graph, built),
            graph.loss_room,
            side_effects=effects,
            written_parameters=averaged,
        )

    def run(
        self, module: nn.Module, sample: Sample, tangent: MakeOutputGradient = torch.ones_like
    ) -> tuple[Any, Any]:
        """One forward and backward; gives the output, and the loss or the gradients it received."""
        output = self.forward(module, sample)
        return output, self.backward(output, tangent)

    def forward(self, module: nn.Module, sample: Sample) -> Any:
        """The output of one forward, with what it stores where that is a part of the step."""
        args, kwargs = sample
        if not self.side_effects:
            return module(*args, **kwargs)
        self.side_effects.release(module)
        before = self.side_effects.counters(module)
        output = module(*args, **kwargs)
        after = self.side_effects.counters(module)
        counted = [now - then for now, then in zip(after, before, strict=True)]
        return output, self.side_effects.read(module), counted

    def backward(self, output: Any, tangent: MakeOutputGradient = torch.ones_like) -> Any:
        """One backward; gives the loss, or the gradients that the output received with what stays
        of the loss's room."""
        if self.loss is not None:
            value = self.loss(output)
            with _disable_autocast(value.device.type):
                value.backward()
            return value
        leaves, _ = flatten(output)
        receiving = [leaves[index] for index in self.outputs_with_gradient]
        del leaves
        tangents = [tangent(leaf) for leaf in receiving]
        device = receiving[0].device if receiving else torch.device("cpu")
        scalars = self._take_loss_room(device)
        with _disable_autocast(device.type):
            torch.autograd.backward(receiving, tangents)
        return [*tangents, *scalars]

    def _take_loss_room(self, device: torch.device) -> list[Tensor]:
        """Takes the bytes of a loss and gives most of them back; returns those that stay."""
        if not self.loss_room:
            return []
        held = min(self.loss_room, LOSS_SCALAR_BYTES)
        scalars = torch.zeros(held, dtype=torch.uint8, device=device)
        room = torch.empty(self.loss_room - held, dtype=torch.uint8, device=device)
        if self.fill_loss_room:
            room.zero_()
        return [scalars]


def _disable_autocast(device: str) -> contextlib.AbstractContextManager[Any]:
    """A backward runs outside of autocast, also where the forward is within it."""
    if torch.is_autocast_enabled(device):
        return torch.autocast(device, enabled=False)
    return contextlib.nullcontext()


class RandomOutputGradients:
    """Makes the same normally distributed gradients of outputs whenever it is used anew with a
    seed, without touching the default generator."""

    def __init__(self, seed: int) -> None:
        self._generator = torch.Generator().manual_seed(seed)
        self._made: list[tuple[torch.Size, tuple[int, ...], torch.dtype]] = []
        self._numbers: list[Tensor] = []
        self._ahead: Iterator[Tensor] = iter(())

    def __call__(self, leaf: Tensor) -> Tensor:
        """The gradient of an output. Its numbers take memory beside it, unless they were drawn
        ahead."""
        made = torch.empty_like(leaf)
        if made.layout == torch.strided:
            self._made.append((made.shape, made.stride(), made.dtype))
        ahead = next(self._ahead, None)
        return made.copy_(self._draw(made.shape, made.dtype) if ahead is None else ahead)

    def draw_ahead(self, last: RandomOutputGradients) -> None:
        """Draws the numbers for a step whose outputs are like those of the last one, and keeps
        them until there are others."""
        self._numbers = []
        for shape, strides, dtype in last._made:
            drawn = torch.empty_strided(shape, strides, dtype=dtype, device="cpu")
            self._numbers.append(drawn.copy_(self._draw(shape, dtype)))
        self._ahead = iter(self._numbers)
        last._made.clear()

    def _draw(self, shape: torch.Size, dtype: torch.dtype) -> Tensor:
        kind = torch.complex64 if dtype.is_complex else torch.float32
        return torch.randn(shape, generator=self._generator, dtype=kind, device="cpu")


def detach_sample(sample: Sample) -> Sample:
    """A sample whose tensors that require gradients are leaves of their own, without gradient."""

    def renew(leaf: Any) -> Any:
        if isinstance(leaf, Tensor) and leaf.requires_grad:
            return leaf.detach().clone().requires_grad_()
        return leaf

    return map_leaves(renew, sample)


def clear_gradients(module: nn.Module, sample: Sample) -> None:
    """Sets `.grad` of all parameters and inputs to None."""
    module.zero_grad(set_to_none=True)
    for leaf in flatten(sample)[0]:
        if isinstance(leaf, Tensor):
            leaf.grad = None


def randomize_sample(sample: Sample, seed: int, tied: bool = False) -> Sample:
    """A sample of the same shapes, strides and dtypes with other contents.

    Numbers with a fraction are drawn anew between the smallest and the largest that were there, so
    that probabilities stay such; all others, marks and what is not finite are arranged in another
    order. A tensor that the sample holds in several places becomes several tensors, unless `tied`.
    The default generators are left alone. `sample` itself keeps its tensors.
    """
    generator = torch.Generator().manual_seed(seed)
    known: dict[int, Tensor] = {}

    def renew(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        if tied and id(leaf) in known:
            return known[id(leaf)]
        known[id(leaf)] = filled = _copy_with_layout(leaf, _random_values(leaf.detach(), generator))
        return filled

    return map_leaves(renew, sample)


def copy_sample(sample: Sample) -> Sample:
    """The same contents in tensors of their own, which are leaves without gradient; what was one
    tensor in several places stays one."""
    known: dict[int, Tensor] = {}

    def copied(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        if id(leaf) not in known:
            known[id(leaf)] = _copy_with_layout(leaf, leaf.detach())
        return known[id(leaf)]

    return map_leaves(copied, sample)


def _random_values(tensor: Tensor, generator: torch.Generator) -> Tensor:
    if tensor.layout != torch.strided or not tensor.numel():
        return tensor
    if not _is_continuous(tensor):
        order = torch.randperm(tensor.numel(), generator=generator, device="cpu").to(tensor.device)
        return tensor.reshape(-1)[order].view(tensor.shape)
    if tensor.is_complex():
        parts = torch.view_as_real(tensor.resolve_conj().contiguous())
        return torch.view_as_complex(_draw_uniform(parts, generator).contiguous())
    return _draw_uniform(tensor, generator)


def _is_continuous(tensor: Tensor) -> bool:
    if not (tensor.is_floating_point() or tensor.is_complex()) or not tensor.isfinite().all():
        return False
    if tensor.is_complex():
        return True
    first = tensor.reshape(-1)[0]
    others = tensor[tensor != first]
    return bool(others.numel()) and bool((others != others[0]).any())


def _draw_uniform(tensor: Tensor, generator: torch.Generator) -> Tensor:
    low, high = tensor.min().double(), tensor.max().double()
    numbers = torch.rand(tensor.shape, generator=generator, dtype=torch.float64, device="cpu")
    return (low + (high - low) * numbers.to(tensor.device)).to(tensor.dtype)


def _copy_with_layout(tensor: Tensor, values: Tensor) -> Tensor:
    """Values in a new tensor of the layout of another; where its elements share bytes, values of
    dimensions that do are those of their first place."""
    if tensor.layout != torch.strided:
        return values.clone().requires_grad_(tensor.requires_grad)
    filled = torch.empty_strided(
        tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device
    )
    target = filled
    for dimension, (size, stride) in enumerate(zip(tensor.shape, tensor.stride(), strict=True)):
        if stride == 0 and size > 1:
            target = target.narrow(dimension, 0, 1)
            values = values.narrow(dimension, 0, 1)
    target.copy_(values)
    return filled.requires_grad_(tensor.requires_grad)
