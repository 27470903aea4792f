"""Fingerprints: what counts as a change of a stage's or a model's code."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tightfit.util import code_fingerprint
from tightfit.util.code_fingerprint import factory_fingerprint, stage_fingerprint

Write = Callable[[str, str], None]

MODEL = '''"""My models."""
from helpers.blocks import block

def make(width=4):
    """Makes one."""
    # a comment
    return block(width)
'''


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def put(path: str, content: str) -> None:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(content)

    put("mine.py", MODEL)
    put("helpers/__init__.py", "")
    put("helpers/blocks.py", "from . import parts\n\ndef block(width):\n    return parts, width\n")
    put("helpers/parts.py", "SIZE = 1\n")
    put("helpers/unused.py", "SIZE = 1\n")
    put(
        "tightfit/stages/solve/command.py",
        "def run():\n    from tightfit.schemas.blocks import read\n    return read()\n",
    )
    put("tightfit/stages/solve/__init__.py", "")
    put("tightfit/__init__.py", "")
    put("tightfit/stages/__init__.py", "")
    put("tightfit/schemas/__init__.py", "")
    put("tightfit/schemas/blocks.py", "def read():\n    return 1\n")
    put("tightfit/schemas/other.py", "def read():\n    return 1\n")
    return put


@pytest.mark.parametrize(
    ("path", "content", "changes"),
    [
        ("mine.py", MODEL.replace("a comment", "another"), False),
        ("mine.py", MODEL.replace("Makes one", "Makes two"), False),
        ("mine.py", "\n\n" + MODEL.replace("width=4", "width = 4"), False),
        ("mine.py", MODEL.replace("width=4", "width=5"), True),
        ("helpers/parts.py", "SIZE = 2\n", True),
        ("helpers/unused.py", "SIZE = 2\n", False),
        ("helpers/__init__.py", "import os\n", True),
        ("mine.py", "def make(:\n", True),
    ],
)
def test_what_changes_the_source_of_a_model(
    tmp_path: Path, write: Write, path: str, content: str, changes: bool
) -> None:
    before = factory_fingerprint("mine:make", [tmp_path])
    write(path, content)
    assert (factory_fingerprint("mine:make", [tmp_path]) != before) is changes


@pytest.mark.parametrize(
    ("path", "content", "changes"),
    [
        ("tightfit/stages/solve/command.py", "def run():\n    return 2\n", True),
        ("tightfit/stages/solve/more.py", "X = 1\n", True),
        ("tightfit/stages/solve/table.json", "{}", True),
        ("tightfit/schemas/blocks.py", "def read():\n    # new\n    return 1\n", False),
        ("tightfit/schemas/blocks.py", "def read():\n    return 2\n", True),
        ("tightfit/schemas/other.py", "def read():\n    return 2\n", False),
        ("tightfit/stages/trace/command.py", "X = 1\n", False),
        ("tightfit/reports/page.html", "<p>", False),
    ],
)
def test_what_changes_a_stage(
    tmp_path: Path, write: Write, path: str, content: str, changes: bool
) -> None:
    before = stage_fingerprint("solve", tmp_path)
    write(path, content)
    assert (stage_fingerprint("solve", tmp_path) != before) is changes


def test_the_templates_belong_to_the_report(tmp_path: Path, write: Write) -> None:
    write("tightfit/stages/report/command.py", "X = 1\n")
    before = stage_fingerprint("report", tmp_path)
    write("tightfit/reports/page.html", "<p>")
    assert stage_fingerprint("report", tmp_path) != before


def test_each_module_is_looked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    find = code_fingerprint._find_module_file

    def noting(name: str, folders: Sequence[Path]) -> Path | None:
        asked.append(name)
        return find(name, folders)

    monkeypatch.setattr(code_fingerprint, "_find_module_file", noting)
    code_fingerprint._cached_stage_closure.cache_clear()
    stage_fingerprint("solve")
    assert len(asked) == len(set(asked)) > 100


def test_an_absent_factory_has_a_fingerprint_too(tmp_path: Path) -> None:
    assert len(factory_fingerprint("nowhere.at_all:make", [tmp_path])) == 16


def test_stages_of_this_checkout_do_not_depend_on_each_other() -> None:
    names = ["trace", "profile", "partition", "solve", "combine", "generate", "validate", "report"]
    assert len({stage_fingerprint(name) for name in names}) == len(names)


def test_positions_and_type_checking_imports_do_not_count(tmp_path: Path, write: Write) -> None:
    guarded = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import helpers.unused\n"
    write("mine.py", guarded)
    before = factory_fingerprint("mine:make", [tmp_path])
    write("mine.py", "# What follows is the same.\n\n" + guarded.replace(":\n", ":  # or not\n"))
    assert factory_fingerprint("mine:make", [tmp_path]) == before
    write("helpers/unused.py", "SIZE = 3\n")
    assert factory_fingerprint("mine:make", [tmp_path]) == before
