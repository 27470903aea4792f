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
    """A leaf of the call that is no tensor: the one value it may have, or, where it is `unread`,
    any of this class."""

    value: Any
    unread: bool = False


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

    `otherwise` says what becomes of one in other strides: it is taken "as it is", it is "laid out"
    anew, or it is "refused".
    """

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str
    otherwise: str
    overwritten: bool = False


@dataclass(frozen=True)
class Interface:
    """How the step meets the model.

    `tensors` are the arguments of the step in order. `leaves` are the leaves of the call's (args,
    kwargs), whose structure is `input_tree`: positions in `tensors`, or plain. `tangents` are, for
    each differentiable output, the layout of its gradient, or None where the plan was made for a
    loss that gives it none. `slices` lists, for each part of the backward in order, the positions
    in `tensors` that its gradients belong to, a position repeated where its gradient arrives in
    parts. `unlike` are the strides that these gradients have in eager before they are accumulated,
    None where they are their own. `watched` are, for each part, the positions of tensors,
    `watched_outputs` of outputs of the step, that it reads and that nothing may change before.
    `assigned` are the buffers that the forward puts another tensor in the place of. `aliased` are
    outputs that share memory with another output or a tensor, `inner` outputs that the step goes on
    from, `unwritable` outputs that nobody may write into, as one of several views of one function.
    `spaced` are the inputs that may come with other gaps between their elements, of which the step
    takes a copy; `copied` those that may come in any strides where the caller asks for copies.
    `order` is the one in which autograd comes to the outputs. `alike` has for each input the first
    one that is the same object, where the forward asks for that; `asked` what else it asks, of
    inputs (True) or of the model's own. `ones` are inputs that the step rests on being nothing but
    ones, `mixed` those of which it takes none that is. `all_arrive` says that Python ran in the
    backward which is not that of the model where the gradient of an output is absent.
    `eval_modules` are the submodules that were in evaluation mode. `autocast` is, by device type,
    the dtype that autocast was on with, or None, and `autocast_cache` whether it kept its casts.
    `cast` are the positions of the tensors that are cast as autocast would, `spared` the dtypes of
    autocast under which the backward is what it is without autocast. `constants` is the SHA-256 of
    `constants.bin`, "" where there is none. `files` is what the names of the plan's own files begin
    with. `remote` are the positions of the parameters that live in another memory, in the order of
    their numbers there.
    """

    model: str
    device: str
    tensors: tuple[TensorSpec, ...]
    leaves: tuple[int | PlainArgument, ...]
    input_tree: str
    outputs: tuple[ModelOutputLeaf, ...]
    output_tree: str
    tangents: tuple[OutputGradientSpec | None, ...]
    slices: tuple[tuple[int, ...], ...]
    unlike: tuple[tuple[tuple[int, ...] | None, ...], ...]
    watched: tuple[tuple[int, ...], ...]
    watched_outputs: tuple[tuple[int, ...], ...]
    assigned: tuple[int, ...]
    aliased: tuple[int, ...]
    inner: tuple[int, ...]
    unwritable: tuple[int, ...]
    spaced: tuple[int, ...]
    copied: tuple[int, ...]
    order: tuple[int, ...]
    alike: tuple[tuple[int, int], ...]
    asked: tuple[tuple[str, bool], ...]
    ones: tuple[int, ...]
    mixed: tuple[int, ...]
    all_arrive: bool
    eval_modules: frozenset[str]
    autocast: dict[str, str | None]
    autocast_cache: bool
    cast: tuple[int, ...]
    spared: tuple[str, ...]
    constants: str = ""
    files: str = ""
    remote: tuple[int, ...] = ()


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
