"""Factories whose modules are nowhere are told with the configuration's other errors."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tightfit.schemas.config import parse_config, read_config
from tightfit.schemas.config_factories import find_module
from tightfit.util.errors import ConfigError

FAILS = "raise RuntimeError('this was run')\n"
FILES = {
    "code/towers.py": FAILS,
    "code/zoo/__init__.py": FAILS,
    "code/zoo/birds.py": FAILS,
    "code/zoo/cages/birds.py": FAILS,  # a folder without __init__.py
    "code/lazy/__init__.py": "import sys\nsys.modules[__name__ + '.made'] = sys\n" + FAILS,
    "code/paths/__init__.py": "__path__ = __import__('pkgutil').extend_path(__path__, __name__)",
    "more/zoo/fish.py": FAILS,
    "code/spread/one.py": FAILS,
    "more/spread/other.py": FAILS,
    "fixed.py": FAILS,
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


@pytest.mark.parametrize(
    ("module", "there"),
    [
        ("towers", True),
        ("tower", False),
        ("towers.high", False),
        ("zoo", True),
        ("zoo.birds", True),
        ("zoo.fish", True),  # which of the two folders comes first is not asked
        ("zoo.birds.cranes", False),
        ("zoo.insects", False),
        ("zoo.cages.birds", True),
        ("zoo.cages.fish", False),
        ("spread.one", True),
        ("spread.other", True),
        ("spread.third", False),
        ("lazy.made", True),
        ("paths.anything", True),
        ("fixed", True),
        ("json.decoder", True),
        ("json.encode", False),
        ("data.models", True),
        ("tightfit.stages.trace.trace", True),
        ("yaml.loader", True),
        ("sys", True),
        ("torch.nn", True),
        ("transformers.models.gpt2.modeling_gpt2", True),
    ],
)
def test_a_module_is_found_without_running_code(folder: Path, module: str, there: bool) -> None:
    before = set(sys.modules)
    places = [folder / "code", folder / "more", folder]
    assert find_module(module, places) == there
    assert not {"torch", "towers", "zoo"} & (set(sys.modules) - before)


def test_a_module_that_is_nowhere_is_told_with_the_other_errors(folder: Path) -> None:
    (folder / "config.yaml").write_text(
        "search_path: [code, other]\n"
        "pairs: many\n"
        "models:\n"
        "  right: {factory: 'towers:tower'}\n"
        "  typed: {factory: 'zoo.bird:tower', matrix: {depth: [1, 2]}}\n"
        "  wrong: {factory: towers}\n"
        "  beside: {factory: 'fixed:tower'}\n"
    )
    with pytest.raises(ConfigError) as refused:
        read_config(folder / "config.yaml", factories=True)
    lines = str(refused.value).splitlines()[1:]
    assert [line.split(":")[0].strip() for line in lines] == [
        "models.typed.factory",
        "models.wrong.factory",
        "pairs",
    ]
    searched = f"{folder / 'code'}, {folder / 'other'}, {folder} or among the installed packages"
    assert lines[0].strip() == (
        "models.typed.factory: there is no module 'zoo.bird' for 'zoo.bird:tower', expected one in "
        f"{searched}"
    )


def test_results_are_read_without_the_modules_that_made_them() -> None:
    assert parse_config({"models": {"m": {"factory": "nowhere:model"}}}).models["m"]
