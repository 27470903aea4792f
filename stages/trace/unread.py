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

from tightfit.stages.device.factory import Built
from tightfit.stages.trace.following import Event, first_difference
from tightfit.stages.trace.forward import Forward
from tightfit.stages.trace.functions import own_code
from tightfit.stages.trace.watching import watching

_KINDS = (int, float, str)
_OF_TYPES = {"type", "__class__"}
"""What tells a thing from a number without asking it."""


class _AskedError(Exception):
    """Raised in whoever looks at a value that should not be looked at."""


class _Silent:
    """Stands for a value. While the forward runs, within `listening`, it takes down that something
    is asked of it, but for what watches the forward."""

    def __init__(self) -> None:
        object.__setattr__(self, "asked", False)
        object.__setattr__(self, "listening", False)

    def __getattribute__(self, name: str) -> Any:
        if not object.__getattribute__(self, "listening") or _is_watching(sys._getframe(1)):
            return object.__getattribute__(self, name)
        return _answer(self)


def _is_watching(frame: types.FrameType | None) -> bool:
    while frame is not None and frame.f_code.co_filename.startswith("<frozen"):
        frame = frame.f_back
    return frame is not None and own_code(frame.f_code.co_filename)


def _answer(self: _Silent, *_: Any, **__: Any) -> Any:
    object.__setattr__(self, "asked", True)
    raise _AskedError


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
        setattr(_Silent, _name, _answer)


def unread_leaves(
    built: Built,
    first: list[Event],
    without_memory: Callable[[Built, Forward], AbstractContextManager[Any]],
) -> list[int]:
    """The leaves of (args, kwargs) of the first sample that are numbers or texts, and that the
    forward does not look at; `first` is the log of a run of it."""
    leaves = Forward(built, None).given
    places = [place for place, leaf in enumerate(leaves) if type(leaf) in _KINDS]
    if not places:
        return []
    silent = {place: _Silent() for place in places}
    with (
        warnings.catch_warnings(),
        contextlib.suppress(Exception),
        watching(built.model, built.label) as watcher,
    ):
        warnings.simplefilter("ignore")

        @contextlib.contextmanager
        def running() -> Iterator[None]:
            with watcher.running(), _listening(silent.values()):
                yield

        forward = Forward(built, None, running)
        for place, value in silent.items():
            forward.given[place] = value
        with without_memory(built, forward) as mode:
            forward.run(*forward.tensors(mode))
        if first_difference(first, forward.runs[0]) or watcher.names() & _OF_TYPES:
            return []
        returned = {id(leaf.constant) for leaf in forward.leaves}
        return [
            place
            for place, value in silent.items()
            if not value.asked and id(value) not in returned
        ]
    return []


@contextlib.contextmanager
def _listening(values: Iterable[_Silent]) -> Iterator[None]:
    for value in values:
        object.__setattr__(value, "listening", True)
    try:
        yield
    finally:
        for value in values:
            object.__setattr__(value, "listening", False)
