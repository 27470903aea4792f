"""Modules of the same text are compiled once, and each has its own path."""

from __future__ import annotations

import builtins

import pytest

from tightfit.util.code_cache import compile_cached

TEXT = b"def outer():\n    return lambda: 1\n"


def test_a_text_is_compiled_once_and_has_the_path_that_is_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one = compile_cached(TEXT, "/one.py")
    monkeypatch.setattr(builtins, "compile", None)
    other = compile_cached(TEXT, "/other.py")
    monkeypatch.undo()
    for code, path in ((one, "/one.py"), (other, "/other.py")):
        assert code == compile(TEXT, path, "exec", dont_inherit=True)
        inner = [part for part in code.co_consts if hasattr(part, "co_filename")]
        assert [code.co_filename, *(part.co_filename for part in inner)] == [path, path]
