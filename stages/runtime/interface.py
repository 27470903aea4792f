"""What a plan was specialized to: the types that `interface.py` is written in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

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
    """How the step meets the model.

    `tensors` are the arguments of the step in order. `leaves` are the leaves of the call's (args,
    kwargs), whose structure is `input_tree`: positions in `tensors`, or plain. `output_gradients`
    are, for each differentiable output, the layout of its gradient, or None where the plan was made
    for a loss that gives it none. `backward_segments` lists, for each part of the backward in
    order, the positions in `tensors` that its gradients belong to, a position repeated where its
    gradient arrives in parts. `eager_gradient_strides` are the strides that these gradients have in
    eager before they are accumulated, None where they are their own. `version_checked_tensors` are,
    for each part, the positions of tensors, `version_checked_outputs` of outputs of the step, that
    it reads and that nothing may change before. `assigned_buffers` are the buffers that the forward
    puts another tensor in the place of. `aliased` are outputs that share memory with another output
    or a tensor, `intermediate_outputs` outputs that the step goes on from, `unwritable` outputs
    that nobody may write into, as one of several views of one function. `stride_flexible_inputs`
    are the inputs that may come with other gaps between their elements, of which the step takes a
    copy; `copyable_inputs` those that may come in any strides where the caller asks for copies.
    `backward_order` is the one in which autograd comes to the outputs. `same_object_inputs` has for
    each input the first one that is the same object, where the forward asks for that;
    `tensor_queries` what else it asks, of inputs (True) or of the model's own. `all_ones_inputs`
    are inputs that the step rests on being nothing but ones, `not_all_ones_inputs` those of which
    it takes none that is. `requires_all_output_gradients` says that Python ran in the backward
    which is not that of the model where the gradient of an output is absent. `eval_modules` are the
    submodules that were in evaluation mode. `autocast` is, by device type, the dtype that autocast
    was on with, or None, and `autocast_cache` whether it kept its casts, None where that is the
    same. `cached_autocast_tensors`
    are the positions of the tensors that are cast as autocast would, `autocast_invariant_dtypes`
    the dtypes of autocast under which the backward is what it is without autocast. `constants` is
    the SHA-256 of `constants.bin`, "" where there is none. `file_prefix` is what the names of the
    plan's own files begin with. `offloaded_parameters` are the positions of the parameters that
    live in another
    memory, in the order of their numbers
    there. `repeatable` says that the forward draws no random numbers and that what it writes, at
    `written_tensors`, does not change what it computes; `output_components` has a number for each
    differentiable output, which those share whose backwards meet."""

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
