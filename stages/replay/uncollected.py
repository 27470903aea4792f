"""Work whose garbage has no cycles, done without Python's search for them."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """Within it, or within a function that it decorates, the garbage collector rests, if it was at
    work: it would look again and again at thousands of records that all stay."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
