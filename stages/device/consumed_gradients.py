"""Gradients that an optimizer has consumed in the backward: who reads or sets one is told.

Where a plain optimizer leaves gradients until `zero_grad()`, a parameter whose gradient is consumed
has a class with another `grad`, which raises: None there would have a loop that clips, scales or
logs gradients go on in silence.
"""

from __future__ import annotations

import contextlib
import inspect
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch

from .away import AWAY
from .marks import optimiser_of

_GRAD: Any = torch.Tensor.grad
_ZEROING = [
    inspect.unwrap(function).__code__
    for function in (torch.nn.Module.zero_grad, torch.optim.Optimizer.zero_grad)
]
_MOVING = torch.nn.Module._apply.__code__
"""What `model.to()` runs, which looks for gradients to move along."""
_DEPTH = 8
"""As many frames are looked at for these."""
_guarded: dict[type, type] = {}
"""The class with another `grad`, by that of a parameter."""


class ConsumedGradients:
    """Which of the `parameters` of an optimizer have a gradient that it has consumed, until the
    loop drops its gradients; each by its number, with whether `step()` has come since."""

    def __init__(self, parameters: Sequence[torch.Tensor]) -> None:
        self.parameters = parameters
        self.numbers = {id(parameter): number for number, parameter in enumerate(parameters)}
        self.stepped: dict[int, bool] = {}

    def add(self, number: int) -> None:
        """A gradient is consumed."""
        self.stepped[number] = False
        guard(self.parameters[number])

    def guard(self, parameter: torch.Tensor) -> None:
        """Guards a parameter again, where its gradient is consumed."""
        if self.numbers.get(id(parameter)) in self.stepped:
            guard(parameter)

    def end_step(self) -> None:
        """`step()` has come for all."""
        self.stepped = dict.fromkeys(self.stepped, True)

    def drop(self, numbers: Iterable[int]) -> None:
        """The loop has dropped these gradients, as it would those of a plain optimizer."""
        for number in numbers:
            self.stepped.pop(number, None)
            unguard(self.parameters[number])

    def check_zeroed(self, number: int | None = None) -> None:
        """Raises RuntimeError where a parameter, or any, has a gradient of the step before, which a
        plain optimizer would use once more."""
        if any(self.stepped.values()) if number is None else self.stepped.get(number):
            raise RuntimeError(
                "the gradients of the step before were not dropped, and a plain optimizer would "
                "add to them or use them once more: call optimizer.zero_grad() between a step() "
                "and the next backward"
            )

    def check(self, parameter: torch.Tensor, sets: bool) -> None:
        """Raises RuntimeError where a gradient that is read or set has been consumed."""
        number = self.numbers.get(id(parameter))
        if number not in self.stepped:
            return
        if self.stepped[number]:
            if sets or _zeroes():
                self.drop([number])
                return
            if any(frame.f_code is _MOVING for frame in _frames()):
                return
        raise RuntimeError(
            f"the gradient of a parameter of shape {tuple(parameter.shape)} is gone: the optimizer "
            "of the plan has updated the parameter by it in the backward, so that nothing can "
            "read, clip, scale or change it; plan with keep_gradients=True (of tightfit.plan, "
            "plan_trainer and in_backward), which keeps gradients for optimizer.step()"
        )


def guard(parameter: torch.Tensor) -> None:
    """Gives a parameter the class whose `grad` asks the optimizer; one without values has its
    own."""
    kind = type(parameter)
    if kind.__name__ != AWAY and kind not in _guarded.values():
        parameter.__class__ = _guarded_class(kind)


def unguard(parameter: torch.Tensor) -> None:
    """Gives a parameter its own class again."""
    if type(parameter) in _guarded.values():
        parameter.__class__ = type(parameter).__mro__[1]


def _guarded_class(kind: type) -> type:
    if kind not in _guarded:
        body: dict[str, Any] = {
            "__doc__": kind.__doc__,
            "__module__": kind.__module__,
            "__deepcopy__": _deepcopy,
            "__reduce_ex__": _reduce_ex,
            "grad": _PROPERTY,
            "_grad": _PROPERTY,
        }
        if kind is torch.Tensor:
            body["__torch_function__"] = torch._C._disabled_torch_function_impl
        metaclass: Any = type(kind)
        _guarded[kind] = metaclass(kind.__name__, (kind,), body)
    return _guarded[kind]


def _read(parameter: torch.Tensor) -> Any:
    _check(parameter, sets=False)
    return _GRAD.__get__(parameter)


def _set(parameter: torch.Tensor, gradient: Any) -> None:
    _check(parameter, sets=True)
    _GRAD.__set__(parameter, gradient)


def _delete(parameter: torch.Tensor) -> None:
    _set(parameter, None)


_PROPERTY = property(_read, _set, _delete)


def _check(parameter: torch.Tensor, sets: bool) -> None:
    optimizer = optimiser_of(parameter)
    if optimizer is not None:
        optimizer.check_gradient(parameter, sets)


@contextlib.contextmanager
def _own_class(parameter: torch.Tensor) -> Iterator[Any]:
    """Within it a parameter is of its own class."""
    guarded = type(parameter)
    unguard(parameter)
    try:
        yield parameter
    finally:
        parameter.__class__ = guarded


def _deepcopy(parameter: torch.Tensor, memo: Any) -> Any:
    with _own_class(parameter) as own:
        return own.__deepcopy__(memo)


def _reduce_ex(parameter: torch.Tensor, protocol: Any) -> Any:
    with _own_class(parameter) as own:
        return own.__reduce_ex__(protocol)


def _frames() -> Iterator[Any]:
    frame: Any = sys._getframe(1)
    for _ in range(_DEPTH):
        if frame is not None:
            yield frame
            frame = frame.f_back


def _zeroes() -> bool:
    """Whether `zero_grad()` of a module or an optimizer asks, to set gradients to None."""
    return any(f.f_code in _ZEROING and f.f_locals.get("set_to_none") for f in _frames())
