from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

from tightfit.util.code_cache import is_cached, remove_stale_cache


def test_compiled_code_goes_with_any_source_of_its_package(tmp_path: Path) -> None:
    (tmp_path / "__pycache__").mkdir()
    files = ("__init__.py", "caller.py", "called.py")
    for number, name in enumerate((*files, "__pycache__/caller.f-1.py311.nbi")):
        (tmp_path / name).write_text("")
        os.utime(tmp_path / name, (1000 + number, 1000 + number))
    index = tmp_path / "__pycache__/caller.f-1.py311.nbi"
    remove_stale_cache(str(tmp_path / "__init__.py"))
    assert index.exists()
    os.utime(tmp_path / "called.py", (2000, 2000))
    remove_stale_cache(str(tmp_path / "__init__.py"))
    assert not index.exists()


def test_where_nothing_was_compiled_nothing_is_done(tmp_path: Path) -> None:
    (tmp_path / "__init__.py").write_text("")
    remove_stale_cache(str(tmp_path / "__init__.py"))
    assert [path.name for path in tmp_path.iterdir()] == ["__init__.py"]


def test_a_function_is_kept_once_it_has_an_index(tmp_path: Path) -> None:
    def cool() -> None: ...

    cool.stats = SimpleNamespace(cache_path=str(tmp_path))  # type: ignore[attr-defined]
    assert not is_cached(cool)
    (tmp_path / "anneal.cool-39.py311.nbi").write_text("")
    assert is_cached(cool)
