"""Follows a forward while it is captured: where each call comes from, and what it was given.

Calls of PyTorch's functions are seen before they are taken apart, so that a captured operator can
be traced back to its submodule and source line, and two runs of one forward can be compared.
"""

from __future__ import annotations

import contextlib
import hashlib
import sys
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.fx import traceback as fx_traceback
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakTensorKeyDictionary

from stages.trace.known import Known
from stages.trace.source import is_foreign
from stages.trace.unlike import check_call

Event = tuple[str, str]
"""A call in words that are the same in two equal runs, and its "file:line"."""


class Follower(TorchFunctionMode):
    """Writes module paths and source lines into what is captured, and keeps a log of the calls.

    `known` has the integers that hang on no input (`stages.trace.known`).
    """

    def __init__(self, model: nn.Module, label: str) -> None:
        super().__init__()
        self.label = label
        self.paths = {id(module): path for path, module in model.named_modules()}
        self.stack: list[str] = []
        self.log: list[Event] = []
        self._numbers = WeakTensorKeyDictionary()
        self.known = Known()

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        named = kwargs or {}
        place = _place()
        check_call(self.label, getattr(func, "__name__", ""), args, place)
        words = f"{_name(func)} in {self.stack[-1:]} of {self._words(args)} {self._words(named)}"
        with self._described(place):
            result = func(*args, **named)
        self.log.append((words, place))
        if isinstance(result, torch.Tensor):
            self._numbers[result] = len(self.log)
        self.known.follow(func, args, named, result)
        return result

    @contextlib.contextmanager
    def following(self) -> Iterator[None]:
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
            number = self._numbers.get(argument, "")
            return f"#{number} {argument.dtype}{list(argument.shape)}"
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


def first_difference(one: list[Event], other: list[Event]) -> str | None:
    """The "file:line" of the first call in which two runs differ ("" where it is not known), None
    where they do not differ."""
    for mine, theirs in zip(one, other, strict=False):
        if mine[0] != theirs[0]:
            return theirs[1]
    if len(one) != len(other):
        longer = max(one, other, key=len)
        return longer[min(len(one), len(other))][1]
    return None


def _place() -> str:
    """The "file:line" of the innermost frame outside PyTorch and tightfit."""
    frame = sys._getframe(2)
    while frame is not None:
        if is_foreign(frame.f_code.co_filename):
            return f"{frame.f_code.co_filename}:{frame.f_lineno}"
        frame = frame.f_back  # type: ignore[assignment]
    return ""


def _name(func: Any) -> str:
    return str(getattr(func, "__qualname__", None) or getattr(func, "__name__", func))
