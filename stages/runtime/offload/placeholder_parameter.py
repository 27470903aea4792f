"""Parameters whose values are in an offload target: what can be asked of them, and that all else is
refused.

Such a parameter stays the object that it was, of a class that says its shape, dtype and gradient
and hands no function its values: it has none. What goes around the class, as `torch.tensor`, C++
and DLPack do, finds a dtype that nothing computes with, within a step and between steps: autograd
gives gradients of the dtype that the parameter names for them (`grad_dtype`), which stays its own.
It gives complex ones to complex parameters alone: those are of their dtype within a step, and no
number.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from .parameter_pieces import is_dense

BLANK_DTYPE = torch.float4_e2m1fn_x2
"""The dtype of what has no values."""


@dataclass(frozen=True)
class MemoryLayout:
    """How a parameter lies in memory where it is there."""

    dtype: torch.dtype
    shape: torch.Size
    strides: tuple[int, ...]
    device: torch.device

    @classmethod
    def of(cls, tensor: torch.Tensor) -> MemoryLayout:
        """That of a tensor."""
        return cls(tensor.dtype, tensor.shape, tensor.stride(), tensor.device)

    @property
    def bytes(self) -> int:
        """The bytes of its elements, which are dense."""
        return self.shape.numel() * self.dtype.itemsize

    def view(self, whole: torch.Tensor) -> torch.Tensor:
        """The bytes of a tensor as one of this layout."""
        made = torch.empty(0, dtype=self.dtype, device=self.device)
        return made.set_(whole.untyped_storage(), 0, self.shape, self.strides)

    def empty(self) -> torch.Tensor:
        """A tensor of this layout with any contents."""
        return torch.empty_strided(
            self.shape, self.strides, dtype=self.dtype, device=self.device, requires_grad=False
        )

    def stand_in(self) -> torch.Tensor:
        """A tensor of this shape with the bytes of one element, which is no number."""
        nothing = torch.full((1,), float("nan"), dtype=self.dtype, device=self.device)
        return nothing.expand(self.shape)

    def blank(self) -> torch.Tensor:
        """A tensor of this shape with the bytes of one element, of a dtype that PyTorch computes
        nothing with and converts to no other one."""
        nothing = torch.full((1,), 255, dtype=torch.uint8, device=self.device)
        return nothing.view(BLANK_DTYPE).expand(self.shape)


def prevent_swapping(parameters: Sequence[torch.Tensor]) -> list[weakref.ref[torch.Tensor]]:
    """References that keep `torch.utils.swap_tensors` from giving parameters other contents, for as
    long as they are held: it takes no tensor that a weak reference leads to. A swap would take
    their hooks away, and what is done by these would end in silence."""
    return [weakref.ref(parameter) for parameter in parameters]


class ParameterOwner(Protocol):
    """Who knows where parameters are; see `stages.runtime.offload.parameter_store`."""

    def number(self, parameter: torch.Tensor) -> int:
        """The number of a parameter."""

    def layout(self, number: int) -> MemoryLayout:
        """How it lies where it is there."""

    def refusal(self, number: int) -> str:
        """Why its values are not to be had, in a sentence."""

    def check_gradient(self, number: int, sets: bool) -> None:
        """Raises RuntimeError where its gradient, which is read or set, is in an offload target,
        too, or was consumed in the backward."""

    def answer_in_state_dict(self, name: str, args: Sequence[Any]) -> Any:
        """What a method gives while a `state_dict` is read or written, else NotImplemented."""


_READABLE_ATTRIBUTES = frozenset(
    (
        *("shape", "device", "layout", "requires_grad", "grad", "is_leaf", "grad_fn"),
        *("ndim", "output_nr", "retains_grad", "_version", "names", "grad_dtype"),
        *("is_cuda", "is_cpu", "is_meta", "is_sparse", "is_nested", "is_quantized", "is_mkldnn"),
        *("is_xla", "is_xpu", "is_mps", "is_sparse_csr", "is_ipu", "is_vulkan", "is_maia"),
        *("_backward_hooks", "_post_accumulate_grad_hooks", "_grad", "_grad_fn", "_base"),
    )
)
"""Attributes that are there without the values."""
_SETTABLE_ATTRIBUTES = frozenset(
    ("requires_grad", "grad", "_grad", "_backward_hooks", "_post_accumulate_grad_hooks")
)
_GRADIENT_ATTRIBUTES = ("grad", "_grad")
_CALLABLE_METHODS = frozenset(
    (
        *("size", "dim", "numel", "nelement", "ndimension", "get_device", "is_inference"),
        *("register_hook", "register_post_accumulate_grad_hook", "requires_grad_", "__hash__"),
        *("_is_view", "is_same_size", "__len__"),
    )
)
"""Methods that need no values."""
_LAYOUT_ANSWERS: dict[str, Callable[[MemoryLayout], Any]] = {
    "dtype": lambda layout: layout.dtype,
    "itemsize": lambda layout: layout.dtype.itemsize,
    "element_size": lambda layout: layout.dtype.itemsize,
    "nbytes": lambda layout: layout.bytes,
    "is_floating_point": lambda layout: layout.dtype.is_floating_point,
    "is_complex": lambda layout: layout.dtype.is_complex,
    "is_signed": lambda layout: layout.dtype.is_signed,
    "is_shared": lambda layout: layout.device.type != "cpu",
}
"""Attributes and methods that are those of the parameter where it is there."""


PLACEHOLDER_CLASS = "AwayParameter"
"""The name of the class, in whatever copy of this file it was made."""


def make_placeholder_class(owner: ParameterOwner) -> type[torch.nn.Parameter]:
    """The class of an owner's parameters while their values are not to be had."""

    def torch_function(
        cls: type, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        own = next((leaf for leaf in _flat_arguments(args, kwargs) if type(leaf) is kind), None)
        if own is None:
            return NotImplemented
        number = owner.number(own)
        if args and own is args[0]:
            found = _answer_without_values(owner, number, func, args, kwargs or {})
            if found is not NotImplemented:
                return found
        raise RuntimeError(owner.refusal(number))

    def as_subclass(self: torch.Tensor, cls: type) -> torch.Tensor:
        raise RuntimeError(owner.refusal(owner.number(self)))

    body = {
        "__torch_function__": classmethod(torch_function),
        "as_subclass": as_subclass,
        "__module__": __name__,
        "__doc__": "A parameter whose values are in an offload target.",
    }
    metaclass: Any = type(torch.nn.Parameter)
    kind: type[torch.nn.Parameter] = metaclass(PLACEHOLDER_CLASS, (torch.nn.Parameter,), body)
    return kind


def _answer_without_values(
    owner: ParameterOwner, number: int, func: Any, args: Sequence[Any], kwargs: Any
) -> Any:
    """What a question gives that needs no values, else NotImplemented."""
    name = getattr(func, "__name__", "")
    asked = getattr(getattr(func, "__self__", None), "__name__", "")
    layout = owner.layout(number)
    if asked in _GRADIENT_ATTRIBUTES:
        owner.check_gradient(number, name != "__get__")
    if name == "__set__":
        allowed = asked in _SETTABLE_ATTRIBUTES
    elif name == "__get__":
        if asked in _LAYOUT_ANSWERS:
            return _LAYOUT_ANSWERS[asked](layout)
        allowed = asked in _READABLE_ATTRIBUTES
    else:
        if name in _LAYOUT_ANSWERS and len(args) == 1 and not kwargs:
            return _LAYOUT_ANSWERS[name](layout)
        if name == "stride":
            place = args[1] if len(args) > 1 else kwargs.get("dim")
            return layout.strides if place is None else layout.strides[place]
        if name == "is_contiguous" and len(args) == 1 and not kwargs:
            return torch.empty_strided(layout.shape, layout.strides, device="meta").is_contiguous()
        if name == "__repr__":
            return f"Parameter of shape {tuple(layout.shape)}, {layout.dtype}, in an offload target"
        served = owner.answer_in_state_dict(name, args)
        if served is not NotImplemented:
            return served
        allowed = name in _CALLABLE_METHODS
    if not allowed:
        return NotImplemented
    with torch._C.DisableTorchFunctionSubclass():
        found = func(*args, **kwargs)
    return (
        _gradient_in_layout(args[0], found, layout)
        if asked in _GRADIENT_ATTRIBUTES and name == "__get__"
        else found
    )


def _gradient_in_layout(parameter: Any, gradient: Any, layout: MemoryLayout) -> Any:
    """A parameter's gradient, which lies as the parameter does where it is there: autograd, which
    sees what stands in for it, makes one in the order of its dimensions."""
    if gradient is None or gradient.layout != torch.strided or gradient.stride() == layout.strides:
        return gradient
    parameter.grad = layout.empty().copy_(gradient.detach())
    return parameter.grad


def _flat_arguments(args: Any, kwargs: Any) -> list[Any]:
    """The tensors among arguments, in lists and tuples too."""
    found: list[Any] = []
    for each in (*args, *(kwargs or {}).values()):
        found += _flat_arguments(each, None) if isinstance(each, list | tuple) else [each]
    return found


def check_offloadable(parameters: Sequence[torch.Tensor], paths: Sequence[str]) -> None:
    """Raises RuntimeError, in one sentence, where parameters cannot live elsewhere."""
    usual = _storage_use_count(torch.nn.Parameter(torch.empty(1)))
    for parameter, path in zip(parameters, paths, strict=True):
        if type(parameter) is not torch.nn.Parameter:
            kind = type(parameter).__name__
            raise RuntimeError(
                f"{path} is a {kind}, and parameters alone live in an offload target"
            )
        if not (parameter.is_floating_point() or parameter.is_complex()):
            raise RuntimeError(f"{path} is of {parameter.dtype}, which stays on the device")
        own = parameter.untyped_storage().nbytes()
        size = parameter.numel() * parameter.element_size()
        if not is_dense(parameter) or own != size or _storage_use_count(parameter) > usual:
            raise RuntimeError(
                f"{path} shares its memory with another tensor, or is a part of one: give it a "
                f"clone before it leaves the device"
            )


def _storage_use_count(parameter: torch.Tensor) -> int:
    """By how many the bytes of a tensor are held."""
    count: int = torch._C._storage_Use_Count(parameter.untyped_storage()._cdata)
    return count
