"""Gradients that an optimizer has consumed in the backward: who reads or sets one is told.

Where a plain optimizer leaves gradients until `zero_grad()`, a parameter whose gradient is consumed
has a class with another `grad`, which raises: None there would have a loop that clips, scales or
logs gradients go on in silence.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from types import FrameType
from typing import Any

import torch

from ..backward_tracker import backward_optimizer_of
from .placeholder_parameter import PLACEHOLDER_CLASS

_GRAD: Any = torch.Tensor.grad
_ZERO_GRAD_FUNCTIONS = frozenset(
    {("torch.nn.modules.module", "zero_grad"), ("torch.optim.optimizer", "zero_grad")}
)
_MOVE_FUNCTIONS = frozenset({("torch.nn.modules.module", "_apply")})
"""What `model.to()` runs, which looks for gradients to move along."""
_TRACE_FUNCTIONS = frozenset({("torch._subclasses.meta_utils", "safe_grad")})
"""What looks for gradients where a model is traced."""
_MAX_FRAMES = 8
"""As many frames are looked at for these functions."""
_guarded_classes: dict[type, type] = {}
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
        guard_gradient(self.parameters[number])

    def guard(self, parameter: torch.Tensor) -> None:
        """Guards a parameter again, where its gradient is consumed."""
        if self.numbers.get(id(parameter)) in self.stepped:
            guard_gradient(parameter)

    def end_step(self) -> None:
        """`step()` has come for all."""
        self.stepped = dict.fromkeys(self.stepped, True)

    def drop(self, numbers: Iterable[int]) -> None:
        """The loop has dropped these gradients, as it would those of a plain optimizer."""
        for number in numbers:
            self.stepped.pop(number, None)
            unguard_gradient(self.parameters[number])

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
        if number not in self.stepped or _calling_frame(_TRACE_FUNCTIONS):
            return
        if self.stepped[number]:
            if sets or _called_by_zero_grad():
                self.drop([number])
                return
            if _calling_frame(_MOVE_FUNCTIONS):
                return
        raise RuntimeError(
            f"the gradient of a parameter of shape {tuple(parameter.shape)} is gone: the optimizer "
            "of the plan has updated the parameter by it in the backward, so that nothing can "
            "read, clip, scale or change it; plan with "
            "gradients=GradientOptions(keep=True), or in_backward with keep_gradients=True, which "
            "keeps gradients for optimizer.step()"
        )


def guard_gradient(parameter: torch.Tensor) -> None:
    """Gives a parameter the class whose `grad` asks the optimizer; one without values has its
    own."""
    kind = type(parameter)
    if kind.__name__ != PLACEHOLDER_CLASS and kind not in _guarded_classes.values():
        parameter.__class__ = _guarded_class(kind)


def unguard_gradient(parameter: torch.Tensor) -> None:
    """Gives a parameter its own class again."""
    if type(parameter) in _guarded_classes.values():
        parameter.__class__ = type(parameter).__mro__[1]


def _guarded_class(kind: type) -> type:
    if kind not in _guarded_classes:
        body: dict[str, Any] = {
            "__doc__": kind.__doc__,
            "__module__": kind.__module__,
            "__deepcopy__": _deepcopy,
            "__reduce_ex__": _reduce_ex,
            "grad": _GUARDED_GRADIENT,
            "_grad": _GUARDED_GRADIENT,
        }
        if kind is torch.Tensor:
            body["__torch_function__"] = torch._C._disabled_torch_function_impl
        metaclass: Any = type(kind)
        _guarded_classes[kind] = metaclass(kind.__name__, (kind,), body)
    return _guarded_classes[kind]


def _get_gradient(parameter: torch.Tensor) -> Any:
    _check_gradient(parameter, sets=False)
    return _GRAD.__get__(parameter)


def _set_gradient(parameter: torch.Tensor, gradient: Any) -> None:
    _check_gradient(parameter, sets=True)
    _GRAD.__set__(parameter, gradient)


def _delete_gradient(parameter: torch.Tensor) -> None:
    _set_gradient(parameter, None)


_GUARDED_GRADIENT = property(_get_gradient, _set_gradient, _delete_gradient)


def _check_gradient(parameter: torch.Tensor, sets: bool) -> None:
    optimizer = backward_optimizer_of(parameter)
    if optimizer is not None:
        optimizer.check_gradient(parameter, sets)


@contextlib.contextmanager
def _unguarded_class(parameter: torch.Tensor) -> Iterator[Any]:
    """Within it a parameter is of its own class."""
    guarded = type(parameter)
    unguard_gradient(parameter)
    try:
        yield parameter
    finally:
        parameter.__class__ = guarded


def _deepcopy(parameter: torch.Tensor, memo: Any) -> Any:
    with _unguarded_class(parameter) as own:
        return own.__deepcopy__(memo)


def _reduce_ex(parameter: torch.Tensor, protocol: Any) -> Any:
    with _unguarded_class(parameter) as own:
        return own.__reduce_ex__(protocol)


def _called_by_zero_grad() -> bool:
    """Whether `zero_grad()` of a module or an optimizer asks, to set gradients to None."""
    frame = _calling_frame(_ZERO_GRAD_FUNCTIONS)
    return frame is not None and bool(frame.f_locals.get("set_to_none"))


def _calling_frame(functions: Collection[tuple[str, str]]) -> FrameType | None:
    """The frame of one of some functions, by module and name, that reads the gradient, if any."""
    frame: FrameType | None = sys._getframe(1)
    for _ in range(_MAX_FRAMES):
        if frame is None:
            return None
        if (frame.f_globals.get("__name__"), frame.f_code.co_name) in functions:
            return frame
        frame = frame.f_back
    return None
