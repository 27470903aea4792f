"""Follows a forward while it is captured: where each call comes from, and what it was given.

Calls of PyTorch's functions are seen before they are taken apart, so that a captured operator can
be traced back to its submodule and source line, and two runs of one forward can be compared.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
import sys
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import nn
from torch.fx import traceback as fx_traceback
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils.weak import WeakTensorKeyDictionary

from tightfit.stages.runtime.guards.encode import tensor_digest
from tightfit.stages.trace.code_inspection import caller_location, is_external_code
from tightfit.stages.trace.constant_folding import ConstantFolder, hint_size
from tightfit.stages.trace.guards.tensor_queries import TensorQueries
from tightfit.stages.trace.number_operands import NumberOperands
from tightfit.util.errors import ModelError

_CAST_INSIDE = ("affine_grid", "affine_grid_generator", "bilinear", "linalg_pinv", "pinv")
"""What multiplies matrices inside one operator, where eager's autocast casts and a step's does
not."""

_RUNNING_MINIMUM = 3
"""The argument of fake quantizers that has a size only after the first step."""

_NON_STRIDED = re.compile(
    "to_mkldnn|to_sparse(_csr|_csc|_bsr|_bsc)?|sparse_(coo|csr|csc|bsr|bsc|compressed)_tensor"
)
"""What makes tensors that are not strided; on tensors without memory, PyTorch ends the process at
some of them."""

_INVISIBLE_CALLS: dict[Any, tuple[str, str]] = {
    torch.Tensor.data.__set__: (  # type: ignore[attr-defined]
        "sets .data of a tensor",
        "set it between steps, or compute with a new tensor",
    ),
    torch.Tensor.retain_grad: (
        "calls retain_grad() on a tensor",
        "call it on what the model returns",
    ),
}
"""What a capture does not show, and what to do instead."""

_GRAD: Any = torch.Tensor.grad
_GRAD_ACCESSES = {_GRAD.__get__: "reads", _GRAD.__set__: "sets", _GRAD.__delete__: "sets"}
"""What a forward does to the gradient that a tensor has from another step."""


def reject_unsupported_call(
    label: str,
    function: Any,
    args: tuple[Any, ...],
    place: str,
    itself: bool = False,
    module: str = "",
) -> None:
    """Raises ModelError where a plan of a call, at the "file:line" `place` in a `module`, would
    give other numbers than eager. `itself` is true where that line is the caller, and not PyTorch.
    """
    name = getattr(function, "__name__", "")
    tensor = next((arg for arg in args if isinstance(arg, torch.Tensor)), None)
    if tensor is None:
        return
    at = f" at {place}" if place else ""
    if name == "prod" and tensor.requires_grad and torch.is_grad_enabled():
        raise ModelError(
            f"{label}: the backward of prod(){at} looks for zeros in the data, which a plan "
            "cannot do: multiply the parts with each other, or use cumprod() and its last element"
        )
    if name == "fused_moving_avg_obs_fake_quant" and not args[_RUNNING_MINIMUM].numel():
        raise ModelError(
            f"{label}: the fake quantizer {module} changes the shape of its buffers, as it does in "
            "its first step alone: run the model once before planning (in training mode)"
        )
    if _NON_STRIDED.fullmatch(name):
        raise ModelError(
            f"{label}: {name}(){at} makes a tensor that is not strided, which a plan does not "
            "hold: compute with dense tensors"
        )
    if function in _INVISIBLE_CALLS and place:
        does, instead = _INVISIBLE_CALLS[function]
        raise ModelError(f"{label}: the forward {does}{at}, which a plan would not do: {instead}")
    if function in _GRAD_ACCESSES and itself:
        raise ModelError(
            f"{label}: the forward {_GRAD_ACCESSES[function]} .grad of a tensor{at}, which a plan "
            "would not "
            "do: do so between steps, or keep what it needs in a buffer"
        )
    if name in _CAST_INSIDE and torch.is_autocast_enabled(tensor.device.type):
        raise ModelError(
            f"{label}: {name}(){at} runs under autocast, which casts inside it where a plan does "
            "not follow: call it in a region with torch.autocast(..., enabled=False)"
        )


CallEvent = tuple[str, str]
"""A call in words that are the same in two equal runs, and its "file:line"."""


_METADATA_QUERIES = ("__get__", "size", "dim", "numel", "stride", "__len__", "is_floating_point")
_LAYOUT_QUERIES = (
    "stride",
    "dim_order",
    "is_contiguous",
    "storage_offset",
    "data_ptr",
    "untyped_storage",
    "storage",
)
"""What a forward can ask of a tensor that says how it lies in memory."""


class CallRecorder(TorchFunctionMode):
    """Writes module paths and source lines into what is captured, and keeps a log of the calls.

    `known` has the integers that hang on no input (`stages.trace.constant_folding`). Where it has
    all tensors that hang on none, calls that only make such tensors are not logged, and other calls
    name them by their bytes: two runs are alike where one makes what the other finds made.
    `asks_layout` says whether the forward asked a tensor how it lies in memory, `asked` takes down
    what else it asked."""

    def __init__(
        self,
        model: nn.Module,
        label: str,
        asked: TensorQueries,
        known: ConstantFolder | None = None,
    ) -> None:
        super().__init__()
        self.asked = asked
        self.model = model
        self.label = label
        self.paths = {id(module): path for path, module in model.named_modules()}
        self._own: dict[str, str] = {}
        first: dict[int, str] = {}
        for path, tensor in _model_tensors(model):
            self._own[path] = first.setdefault(id(tensor), path)
        self.stack: list[str] = []
        self.log: list[CallEvent] = []
        self.asks_layout = False
        self._numbers = WeakTensorKeyDictionary()
        self.known = known or ConstantFolder()
        self.numbers = NumberOperands()

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        named = kwargs or {}
        place = caller_location()
        caller = sys._getframe(1)
        itself = is_external_code(caller.f_code.co_filename)
        module = self.stack[-1] if self.stack else ""
        reject_unsupported_call(self.label, func, args, place, itself, module)
        self.asked.call(_queried_name(func), args, place, caller)
        given = f"{self._words(args)} {self._words(named)}"
        words = f"{_function_name(func)} in {self.stack[-1:]} of {given}"
        answer = self.known.answer_call(func, args)
        if answer is not None:
            return answer
        with self._described(place):
            result = self.numbers.call(func, args, named)
        self.asked.making.follow(func, args, named, result)
        self.asks_layout |= getattr(func, "__name__", "") in _LAYOUT_QUERIES
        if not self._constant(func, result):
            self.log.append((words, place))
            if isinstance(result, torch.Tensor):
                self._numbers[result] = str(len(self.log))
        return result

    def _constant(self, func: Any, result: Any) -> bool:
        """True for what only makes constants or asks for a tensor's shape and the like."""
        tensors = [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor)]
        known = [self.known.find(tensor) is not None for tensor in tensors]
        asks = not tensors and getattr(func, "__name__", "") in _METADATA_QUERIES
        return self.known.every and (asks or (bool(known) and all(known)))

    def name(self, tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Names tensors that no call makes, for the log."""
        for name, tensor in tensors:
            self._numbers[tensor] = name

    def returns(self, leaves: list[Any]) -> None:
        """Logs what the forward returned."""
        self.log.append((f"return of {self._words(leaves)}", ""))

    @contextlib.contextmanager
    def follow_calls(self) -> Iterator[None]:
        """Within it, calls and the modules that make them are followed."""
        call = nn.Module.__call__
        follower = self

        def entered(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            path = follower.paths.get(id(module))
            if path is None:
                return call(module, *args, **kwargs)
            follower.stack.append(path)
            try:
                return call(module, *args, **kwargs)
            finally:
                follower.stack.pop()

        self.log, self._numbers = [], WeakTensorKeyDictionary()
        self.name((self._own[path], tensor) for path, tensor in _model_tensors(self.model))
        nn.Module.__call__ = entered  # type: ignore[method-assign]
        try:
            with self:
                yield
        finally:
            nn.Module.__call__ = call  # type: ignore[method-assign]

    @contextlib.contextmanager
    def _described(self, place: str) -> Iterator[None]:
        meta = fx_traceback.current_meta
        before = {name: meta.get(name) for name in ("stack_trace", "nn_module_stack")}
        file, _, line = place.rpartition(":")
        meta["stack_trace"] = f'File "{file}", line {line}' if place else ""
        meta["nn_module_stack"] = {path: (path, "") for path in self.stack}
        try:
            yield
        finally:
            for name, value in before.items():
                if value is None:
                    meta.pop(name, None)
                else:
                    meta[name] = value

    def _words(self, argument: Any) -> str:
        """What two equal runs give alike: tensors by their maker, bytes of arrays, plain values."""
        if isinstance(argument, torch.Tensor):
            true = self.known.find(argument) if self.known.every else None
            if true is not None:
                with _disable_current_modes():
                    return f"{tensor_digest(true)} {argument.dtype}{list(true.shape)}"
            number, shape = self._numbers.get(argument, ""), [*map(hint_size, argument.shape)]
            return f"#{number} {argument.dtype}{shape}"
        if isinstance(argument, list | tuple):
            return f"[{', '.join(map(self._words, argument))}]"
        if isinstance(argument, dict):
            items = (f"{key}: {self._words(value)}" for key, value in argument.items())
            return f"{{{', '.join(items)}}}"
        if argument is None or isinstance(argument, bool | int | float | complex | str | slice):
            return repr(argument)
        if type(argument).__module__ == "numpy":
            array: Any = argument
            return f"{array.dtype}{array.shape}{hashlib.sha256(array.tobytes()).hexdigest()}"
        return type(argument).__name__


def _model_tensors(model: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """All parameters and buffers, tied ones under each of their names."""
    yield from model.named_parameters(remove_duplicate=False)
    yield from model.named_buffers(remove_duplicate=False)


def first_divergence(one: list[CallEvent], other: list[CallEvent]) -> str | None:
    """The "file:line" of the first call in which two runs differ ("" where it is not known), None
    where they do not differ."""
    for mine, theirs in zip(one, other, strict=False):
        if mine[0] != theirs[0]:
            return theirs[1]
    if len(one) != len(other):
        longer = max(one, other, key=len)
        return longer[min(len(one), len(other))][1]
    return None


def _queried_name(func: Any) -> str:
    """The name of a method, or of the attribute that is taken."""
    name = str(getattr(func, "__name__", ""))
    return str(getattr(func.__self__, "__name__", "")) if name == "__get__" else name


def _function_name(func: Any) -> str:
    return str(getattr(func, "__qualname__", None) or getattr(func, "__name__", func))
