"""Compilers for tests: none at all."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest
from torch._inductor import cpp_builder


@contextlib.contextmanager
def without_compiler() -> Iterator[None]:
    """Within it inductor finds none, as on a machine without one."""

    def absent() -> str:
        raise RuntimeError("No working C++ compiler found")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cpp_builder, "get_cpp_compiler", absent)
        yield
