"""Plain arguments that a forward is given and never looks at, as a number that only counts steps.

The forward runs once more, on things in their place that take down whoever asks them for anything.
Where it does the same, and nobody asked, a plan holds for every other value.
"""

from __future__ import annotations

import contextlib
import sys
import types
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Any

from tightfit.stages.torch_utils.model_factory import BuiltModel
from tightfit.stages.trace.call_recorder import CallEvent, first_divergence
from tightfit.stages.trace.code_inspection import is_tightfit_code
from tightfit.stages.trace.forward import FunctionalForward
from tightfit.stages.trace.guards.guard_recorder import record_guards

_KINDS = (int, float, str)
_TYPE_QUERIES = {"type", "__class__"}
"""What tells a thing from a number without asking it."""


class _ValueReadError(Exception):
    """Raised in whoever looks at a value that should not be looked at."""


class _ReadDetector:
    """Stands for a value. While the forward runs, within `listening`, it takes down that something
    is asked of it, but for what watches the forward."""

    def __init__(self) -> None:
        object.__setattr__(self, "asked", False)
        object.__setattr__(self, "listening", False)

    def __getattribute__(self, name: str) -> Any:
        if not object.__getattribute__(self, "listening") or _is_called_by_tightfit(
            sys._getframe(1)
        ):
            return object.__getattribute__(self, name)
        return _report_read(self)


def _is_called_by_tightfit(frame: types.FrameType | None) -> bool:
    while frame is not None and frame.f_code.co_filename.startswith("<frozen"):
        frame = frame.f_back
    return frame is not None and is_tightfit_code(frame.f_code.co_filename)


def _report_read(self: _ReadDetector, *_: Any, **__: Any) -> Any:
    object.__setattr__(self, "asked", True)
    raise _ValueReadError


_ESSENTIAL = {
    *("__class__", "__new__", "__init__", "__init_subclass__", "__subclasshook__"),
    *("__getattribute__", "__doc__", "__module__", "__dict__", "__del__", "__next__"),
}
_PROTOCOLS = {
    *(name for kind in (int, float, complex, str, list, dict) for name in dir(kind)),
    *("__call__", "__enter__", "__exit__", "__matmul__", "__rmatmul__", "__fspath__"),
    *("__complex__", "__torch_function__", "__array__", "__copy__", "__deepcopy__", "__set_name__"),
}
for _name in _PROTOCOLS - _ESSENTIAL:
    if _name.startswith("__") and _name.endswith("__"):
        setattr(_ReadDetector, _name, _report_read)


def unused_leaves(
    built: BuiltModel,
    first: list[CallEvent],
    without_memory: Callable[[BuiltModel, FunctionalForward], AbstractContextManager[Any]],
) -> list[int]:
    """The leaves of (args, kwargs) of the first sample that are numbers or texts, and that the
    forward does not look at; `first` is the log of a run of it."""
    leaves = FunctionalForward(built, None).given
    places = [place for place, leaf in enumerate(leaves) if type(leaf) in _KINDS]
    if not places:
        return []
    silent = {place: _ReadDetector() for place in places}
    with (
        warnings.catch_warnings(),
        contextlib.suppress(Exception),
        record_guards(built.model, built.label) as watcher,
    ):
        warnings.simplefilter("ignore")

        @contextlib.contextmanager
        def running() -> Iterator[None]:
            with watcher.running(), _detect_reads(silent.values()):
                yield

        forward = FunctionalForward(built, None, running)
        for place, value in silent.items():
            forward.given[place] = value
        with without_memory(built, forward) as mode:
            forward.run(*forward.tensors(mode))
        if first_divergence(first, forward.runs[0]) or watcher.names() & _TYPE_QUERIES:
            return []
        returned = {id(leaf.constant) for leaf in forward.leaves}
        return [
            place
            for place, value in silent.items()
            if not value.asked and id(value) not in returned
        ]
    return []


@contextlib.contextmanager
def _detect_reads(values: Iterable[_ReadDetector]) -> Iterator[None]:
    for value in values:
        object.__setattr__(value, "listening", True)
    try:
        yield
    finally:
        for value in values:
            object.__setattr__(value, "listening", False)
