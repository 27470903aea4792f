"""Python's profiler, taken over for a while and given back."""

from __future__ import annotations

import contextlib
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any


@contextlib.contextmanager
def profiled(watch: Callable[[types.FrameType, str, Any], None]) -> Iterator[None]:
    """Within it `watch` is Python's profiler; afterwards it is the one that was."""
    others: Any = sys.getprofile()
    sys.setprofile(watch)
    try:
        yield
    finally:
        if others is None or callable(others):
            sys.setprofile(others)
        else:  # one written in C, as cProfile: it stands for itself and cannot be called
            sys.setprofile(None)
            others.enable()
