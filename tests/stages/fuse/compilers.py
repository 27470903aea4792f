"""Compilers for tests: none at all, and one that compiles nothing."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from torch._inductor import config, cpp_builder


@contextlib.contextmanager
def without_compiler() -> Iterator[None]:
    """Within it inductor finds none, as on a machine without one."""

    def absent() -> str:
        raise RuntimeError("No working C++ compiler found")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cpp_builder, "get_cpp_compiler", absent)
        yield


@contextlib.contextmanager
def failing_compiler(folder: Path) -> Iterator[None]:
    """Within it the compiler of C++ is one that is there, and fails at what it is given."""
    script = folder / "g++"
    script.write_text(
        '#!/bin/sh\ncase "$*" in *--version*|*-v) exec g++ "$@";; esac\n'
        'echo "internal compiler error" >&2; exit 4\n'
    )
    script.chmod(0o755)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCHINDUCTOR_CACHE_DIR", str(folder / "cache"))
        with config.patch({"cpp.cxx": (None, str(script))}):
            yield
