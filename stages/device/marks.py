"""Which optimiser updates a parameter in its backward, as the parameter itself says, and by what a
backward has ended."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch

_MARK = "_tightfit_optimiser"


class _Mark:
    """Leads to an optimiser; a copy that was pickled leads to none."""

    def __init__(self, optimizer: Any) -> None:
        self._optimizer = weakref.ref(optimizer)

    def __call__(self) -> Any:
        return self._optimizer()

    def __reduce__(self) -> Any:
        return functools.partial, (dict.get, {}, None)


def mark(parameters: Iterable[torch.Tensor], optimizer: Any) -> None:
    """Parameters are updated by an optimiser from here on."""
    made = _Mark(optimizer)
    for parameter in parameters:
        setattr(parameter, _MARK, made)


def unmark(parameters: Iterable[torch.Tensor]) -> None:
    """They are no more."""
    for parameter in parameters:
        vars(parameter).pop(_MARK, None)


def optimiser_of(parameter: torch.Tensor) -> Any:
    """The optimiser that updates a parameter, None where there is none."""
    return getattr(parameter, _MARK, _none)()


def marks_of(parameters: Iterable[torch.Tensor]) -> list[Callable[[], Any]]:
    """What leads to the optimisers of parameters, for as long as these are there."""
    found = {getattr(parameter, _MARK, None): None for parameter in parameters}
    return [each for each in found if each is not None]


def said(error: BaseException) -> str:
    """What an error says in one line, else its kind."""
    lines = str(error).splitlines()
    return lines[0] if lines else type(error).__name__


def ended_early(marks: Iterable[Callable[[], Any]], error: BaseException) -> str:
    """Tells optimisers by what error a backward has ended; returns what that says."""
    for each in marks:
        own = each()
        if own is not None:
            own.ended_early(error)
    return said(error)


def ended_by(marks: Iterable[Callable[[], Any]]) -> str:
    """By what a backward has ended that optimisers know of, "" for none."""
    found = (own.ended_by for own in (each() for each in marks) if own is not None)
    return next(filter(None, found), "")


def _none() -> None:
    return None
