"""Which optimizer updates a parameter in its backward, as the parameter itself says, and by what a
backward has ended."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch

_OPTIMIZER_ATTRIBUTE = "_tightfit_optimizer"


class _OptimizerRef:
    """Leads to an optimizer; a copy that was pickled leads to none."""

    def __init__(self, optimizer: Any) -> None:
        self._optimizer = weakref.ref(optimizer)

    def __call__(self) -> Any:
        return self._optimizer()

    def __reduce__(self) -> Any:
        return functools.partial, (dict.get, {}, None)


def attach_optimizer(parameters: Iterable[torch.Tensor], optimizer: Any) -> None:
    """Parameters are updated by an optimizer from here on."""
    made = _OptimizerRef(optimizer)
    for parameter in parameters:
        setattr(parameter, _OPTIMIZER_ATTRIBUTE, made)


def detach_optimizer(parameters: Iterable[torch.Tensor]) -> None:
    """They are no more."""
    for parameter in parameters:
        vars(parameter).pop(_OPTIMIZER_ATTRIBUTE, None)


def backward_optimizer_of(parameter: torch.Tensor) -> Any:
    """The optimizer that updates a parameter, None where there is none."""
    return getattr(parameter, _OPTIMIZER_ATTRIBUTE, _no_optimizer)()


def optimizer_refs(parameters: Iterable[torch.Tensor]) -> list[Callable[[], Any]]:
    """What leads to the optimizers of parameters, for as long as these are there."""
    found = {getattr(parameter, _OPTIMIZER_ATTRIBUTE, None): None for parameter in parameters}
    return [each for each in found if each is not None]


def error_summary(error: BaseException) -> str:
    """What an error says in one line, else its kind."""
    lines = str(error).splitlines()
    return lines[0] if lines else type(error).__name__


def report_failed_backward(marks: Iterable[Callable[[], Any]], error: BaseException) -> str:
    """Tells optimizers by what error a backward has ended; returns what that says."""
    for each in marks:
        own = each()
        if own is not None:
            own.ended_early(error)
    return error_summary(error)


def backward_failure(marks: Iterable[Callable[[], Any]]) -> str:
    """By what a backward has ended that optimizers know of, "" for none."""
    found = (own.ended_by for own in (each() for each in marks) if own is not None)
    return next(filter(None, found), "")


def _no_optimizer() -> None:
    return None


class BackwardTracker:
    """The backwards of a step, and by what one of them, or the step itself, has `ended` early."""

    def __init__(self) -> None:
        self.ended = ""
        self._place = "backward"
        self._open: set[int] = set()

    def begin(self) -> None:
        """A parameter is updated in the backward that runs."""
        task: int = torch._C._current_graph_task_id()
        if task < 0 or task in self._open:
            return
        self._open.add(task)
        own = weakref.ref(self)

        def end() -> None:
            found = own()
            if found is not None:
                found._open.discard(task)

        # Autograd calls it where a backward comes to its end, and not where an error ends it.
        torch.autograd.Variable._execution_engine.queue_callback(end)

    def fail(self, error: BaseException, place: str = "backward") -> None:
        """An error ends a place; the first one is told."""
        if not self.ended:
            self.ended, self._place = error_summary(error), place

    @property
    def ended_unfinished(self) -> bool:
        """Whether one has ended early, the one that runs aside."""
        return bool(self.ended or self._open - {torch._C._current_graph_task_id()})

    def sentence(self) -> str:
        """What is said of parameters a part of which is updated."""
        why = f"{self.ended}; this ended" if self.ended else "an error ended"
        return (
            f"{why} a {self._place} which had updated some of the parameters: go on from a saved "
            "state_dict(), with an optimizer made anew after optimizer.close()"
        )

    def clear(self) -> None:
        """The next ones begin."""
        self.ended, self._place = "", "backward"
        self._open.clear()
