"""Python's profiler, taken over for a while and given back."""

from __future__ import annotations

import contextlib
import functools
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

Watch = Callable[[types.FrameType, str, Any], None]


@contextlib.contextmanager
def profiled(watch: Watch) -> Iterator[None]:
    """Within it `watch` is Python's profiler, but for what PyTorch does inside of an operator;
    afterwards it is the one that was."""
    others: Any = sys.getprofile()
    sys.setprofile(watch)
    try:
        with _operators_apart(watch):
            yield
    finally:
        if others is None or callable(others):
            sys.setprofile(others)
        else:  # one written in C, as cProfile: it stands for itself and cannot be called
            sys.setprofile(None)
            others.enable()


@contextlib.contextmanager
def _operators_apart(watch: Watch) -> Iterator[None]:
    """Within it `watch` does not see what the modes of a capture do with an operator: most of the
    time of watching, and nothing of the model's."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch._subclasses.functional_tensor import FunctionalTensorMode

    modes: tuple[Any, ...] = (FunctionalTensorMode, FakeTensorMode)
    dispatched = [mode.__torch_dispatch__ for mode in modes]
    for mode, dispatch in zip(modes, dispatched, strict=True):
        mode.__torch_dispatch__ = _unwatched(dispatch, watch)
    try:
        yield
    finally:
        for mode, dispatch in zip(modes, dispatched, strict=True):
            mode.__torch_dispatch__ = dispatch


def _unwatched(dispatch: Callable[..., Any], watch: Watch) -> Callable[..., Any]:
    @functools.wraps(dispatch)
    def unwatched(*args: Any, **kwargs: Any) -> Any:
        if sys.getprofile() is not watch:
            return dispatch(*args, **kwargs)
        sys.setprofile(None)
        try:
            return dispatch(*args, **kwargs)
        finally:
            sys.setprofile(watch)

    return unwatched
