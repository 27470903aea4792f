"""Factories whose modules are nowhere are told with the configuration's other errors."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tightfit.schemas.config import parse_config, read_config
from tightfit.schemas.config_factories import find_module_specs
from tightfit.util.errors import ConfigError

FAILS = "raise RuntimeError('this was run')\n\n\ndef tower(depth=1, *, width=2):\n    pass\n"
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
    specs = find_module_specs(module, places)
    assert (specs is None or bool(specs)) == there
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


SOURCES = {
    "plain": "def tower(depth, width=2):\n    return depth\n",
    "needs": "def tower(*, depth, width=2):\n    return depth\n",
    "free": "def tower(depth=1, **rest):\n    return depth\n",
    "decorated": "import f\n\n\n@f.any\ndef tower(depth):\n    return depth\n",
    "exported": "from nowhere import *\n",
    "named": "from nowhere import tower\n",
    "computed": "globals()['to' + 'wer'] = 1\n",
    "twice": "def tower(depth):\n    pass\n\n\ntower = map(tower)\n",
    "broken": "def tower(:\n",
}


@pytest.mark.parametrize(
    ("factory", "arguments", "said"),
    [
        ("plain:tower", {"depth": 1}, []),
        ("plain:towr", {}, ["factory: there is no function 'towr' in ", "did you mean tower"]),
        ("plain:bridge", {}, ["factory: there is no function 'bridge' in "]),
        (
            "plain:tower",
            {"depht": 1, "depth": 2, "widht": 3},
            ["arguments.depht: is no argument of tower in ", "expected depth, width", "mean width"],
        ),
        ("plain:tower", {"width": 1}, ["arguments: lacks depth, which tower in "]),
        ("needs:tower", {"width": 1}, ["arguments: lacks depth, which tower in "]),
        ("free:tower", {"anything": 1}, []),
        ("decorated:tower", {"anything": 1}, []),
        ("exported:tower", {}, []),
        ("named:tower", {"anything": 1}, []),
        ("computed:tower", {}, []),
        ("twice:tower", {"anything": 1}, []),
        ("broken:tower", {}, []),
        ("json.decoder:tower", {}, ["there is no function 'tower' in "]),
    ],
)
def test_a_factory_that_cannot_be_called_so_is_told(
    tmp_path: Path, factory: str, arguments: dict[str, int], said: list[str]
) -> None:
    for name, text in SOURCES.items():
        (tmp_path / f"{name}.py").write_text(text)
    document = {"models": {"m": {"factory": factory, "arguments": arguments}}}
    try:
        parse_config(document, "c.yaml", tmp_path, factories=True)
    except ConfigError as error:
        assert said and all(words in str(error) for words in said), error
    else:
        assert not said


def test_arguments_of_samples_and_matrices_are_checked_at_their_keys(tmp_path: Path) -> None:
    (tmp_path / "plain.py").write_text(SOURCES["plain"])
    model = {"factory": "plain:tower", "samples": [{"depth": 1, "with": 2}], "matrix": {"x": [1]}}
    with pytest.raises(ConfigError) as refused:
        parse_config({"models": {"m": model}}, "c.yaml", tmp_path, factories=True)
    lines = [line.split(": ")[0].strip() for line in str(refused.value).splitlines()[1:]]
    assert lines == ["models.m.matrix.x", "models.m.samples[0].with"]
