"""What a plan was specialized to: the types that `interface.py` is written in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from .dynamic_sizes import DynamicSizes
from .pytree import read_tree


@dataclass(frozen=True)
class TensorSpec:
    """A tensor that the step takes: a parameter, a buffer, an input or a constant.

    `path` is the name in the model's `state_dict`, `aliases` the further names of a tied
    parameter. A constant lies in `constants.bin` from byte `start` on.
    """

    kind: str
    path: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str
    requires_grad: bool = False
    aliases: tuple[str, ...] = ()
    start: int = 0


@dataclass(frozen=True)
class PlainArgument:
    """A leaf of the call that is no tensor: the one value it may have, or, where it is `unused`,
    any of this class."""

    value: Any
    unused: bool = False


@dataclass(frozen=True)
class ModelOutputLeaf:
    """One leaf of the model's output.

    `source` says where it is: "differentiable" or "plain" (the position among the outputs of the
    step that can receive a gradient, or that cannot), "tensor" or "detached" (the position among
    the tensors the step takes) or "constant" (its `value`).
    """

    source: str
    position: int = 0
    value: Any = None


@dataclass(frozen=True)
class OutputGradientSpec:
    """The layout in which the step expects the gradient of an output, and whether the step
    overwrites it or sends it away.

    `on_stride_mismatch` says what becomes of one in other strides: the step takes it ("accept"),
    takes a copy of it ("copy"), or refuses the call ("reject")."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str
    on_stride_mismatch: str
    overwritten: bool = False


@dataclass(frozen=True)
class Interface:
    """How the step meets the model. Positions are indices into `tensors`, unless it says otherwise.

    Attributes:
        model: Name of the model's class.
        device: Device of the step.
        tensors: Tensors that the step takes, in order.
        leaves: Leaves of the call's (args, kwargs): positions, or plain arguments.
        input_tree: Structure of these leaves.
        outputs: Leaves of the model's output.
        output_tree: Their structure.
        output_gradients: For each differentiable output the layout of its gradient; None if the
            plan was made for a loss that gives it none.
        backward_segments: For each segment of the backward, in order, the positions whose gradients
            it gives, a position repeated if its gradient arrives in parts.
        eager_gradient_strides: Strides that these gradients have in eager before they are
            accumulated; None for the tensor's own.
        version_checked_tensors: For each segment the positions of tensors that it reads and that
            nothing may change before.
        version_checked_outputs: The same of outputs of the step.
        assigned_buffers: Positions of buffers that the forward replaces by another tensor.
        aliased: Outputs that share memory with another output or a tensor.
        intermediate_outputs: Outputs that the step continues from.
        unwritable: Outputs that may not be written, as one of several views of one function.
        stride_flexible_inputs: Inputs that may have other gaps between their elements: the step
            takes a copy.
        copyable_inputs: Inputs that may have any strides if the caller asks for copies.
        backward_order: Order in which autograd comes to the outputs.
        same_object_inputs: Pairs of an input and the first input that is the same object, if the
            forward asks for that.
        tensor_queries: What else the forward asks, with True for inputs and False for the model's
            own tensors.
        all_ones_inputs: Inputs that hold only ones in calls of this plan.
        not_all_ones_inputs: Inputs that do not hold only ones in calls of this plan.
        requires_all_output_gradients: Whether Python code in the backward would run otherwise if
            the gradient of an output were absent.
        eval_modules: Submodules that were in evaluation mode.
        autocast: By device type the dtype of autocast, None if it was off.
        autocast_cache: Whether autocast kept its casts.
        cached_autocast_tensors: Positions of tensors that are cast as autocast would.
        autocast_invariant_dtypes: Dtypes of autocast under which the backward is the same as
            without autocast.
        constants: SHA-256 of `constants.bin`, "" if there is none.
        file_prefix: How the names of the plan's own files begin.
        offloaded_parameters: Positions of the parameters that live in the offload target, in the
            order of their numbers there.
        repeatable: Whether the forward can run again for a further backward: it draws no random
            numbers, what it writes does not change what it computes, and its backward writes
            nothing.
        written_tensors: Positions of the tensors that the step writes.
        output_components: A number for each differentiable output; outputs whose backwards have an
            operator in common have the same one.
        sizes: What differs from call to call; all else is said of the largest sizes. None if
            nothing does.
    """

    model: str
    device: str
    tensors: tuple[TensorSpec, ...]
    leaves: tuple[int | PlainArgument, ...]
    input_tree: str
    outputs: tuple[ModelOutputLeaf, ...]
    output_tree: str
    output_gradients: tuple[OutputGradientSpec | None, ...]
    backward_segments: tuple[tuple[int, ...], ...]
    eager_gradient_strides: tuple[tuple[tuple[int, ...] | None, ...], ...]
    version_checked_tensors: tuple[tuple[int, ...], ...]
    version_checked_outputs: tuple[tuple[int, ...], ...]
    assigned_buffers: tuple[int, ...]
    aliased: tuple[int, ...]
    intermediate_outputs: tuple[int, ...]
    unwritable: tuple[int, ...]
    stride_flexible_inputs: tuple[int, ...]
    copyable_inputs: tuple[int, ...]
    backward_order: tuple[int, ...]
    same_object_inputs: tuple[tuple[int, int], ...]
    tensor_queries: tuple[tuple[str, bool], ...]
    all_ones_inputs: tuple[int, ...]
    not_all_ones_inputs: tuple[int, ...]
    requires_all_output_gradients: bool
    eval_modules: frozenset[str]
    autocast: dict[str, str | None]
    autocast_cache: bool | None
    cached_autocast_tensors: tuple[int, ...]
    autocast_invariant_dtypes: tuple[str, ...]
    constants: str = ""
    file_prefix: str = ""
    offloaded_parameters: tuple[int, ...] = ()
    repeatable: bool = False
    written_tensors: tuple[int, ...] = ()
    output_components: tuple[int, ...] = ()
    sizes: DynamicSizes | None = None

    def at(self, sizes: Sequence[int]) -> Interface:
        """The interface of calls of these sizes alone."""
        if self.sizes is None:
            return self
        named = self.sizes.named(sizes)
        tensors, gradients = [*self.tensors], [*self.output_gradients]
        for position, (shape, strides) in self.sizes.tensors(**named).items():
            tensors[position] = replace(tensors[position], shape=shape, strides=strides)
        for number, (shape, strides) in self.sizes.output_gradients(**named).items():
            expected = gradients[number]
            if expected is not None:
                gradients[number] = replace(expected, shape=shape, strides=strides)
        return replace(self, tensors=tuple(tensors), output_gradients=tuple(gradients), sizes=None)


OutputTensors = Sequence[torch.Tensor]
AssembleOutput = Callable[[OutputTensors, OutputTensors, OutputTensors], Any]


def output_assembler(interface: Interface) -> AssembleOutput:
    """A function of the differentiable outputs, the plain ones and the tensors of the step, which
    returns the model's output."""
    tree = read_tree(interface.output_tree)
    leaves = interface.outputs

    def assemble(
        differentiable: OutputTensors, plain: OutputTensors, tensors: OutputTensors
    ) -> Any:
        sources = {"differentiable": differentiable, "plain": plain, "tensor": tensors}
        return tree.unflatten(leaf_of(leaf, sources) for leaf in leaves)

    def leaf_of(leaf: ModelOutputLeaf, sources: dict[str, OutputTensors]) -> Any:
        if leaf.source == "constant":
            return leaf.value
        if leaf.source == "detached":
            return sources["tensor"][leaf.position].detach()
        return sources[leaf.source][leaf.position]

    return assemble
