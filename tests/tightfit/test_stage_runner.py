"""What is filed in a store takes the place of whatever damaged file is there."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tightfit.api.stage_runner import _store_artifact


def _write(path: Path) -> str:
    path.write_bytes(b"content")
    return "0" * 64


def _cut(path: Path) -> None:
    path.write_bytes(b"con")


def _linked_to_itself(path: Path) -> None:
    path.symlink_to(path)


@pytest.mark.parametrize("damage", [_cut, os.mkfifo, _linked_to_itself])
def test_another_file_is_replaced(damage: Callable[[Path], None], tmp_path: Path) -> None:
    path = _store_artifact(tmp_path, "graph.arrow", _write)
    path.unlink()
    damage(path)
    assert _store_artifact(tmp_path, "graph.arrow", _write) == path
    assert path.is_file() and path.read_bytes() == b"content"
