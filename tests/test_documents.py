"""The documents name things that exist, and their code runs."""

from __future__ import annotations

import ast
import json
import re
import runpy
import textwrap
from pathlib import Path
from typing import Any

import pytest

import tightfit
from tightfit.__main__ import main
from tightfit.schemas.chain import CHAIN

ROOT = Path(__file__).parents[1]
README = "README.md"
QUICKSTART = "docs/quickstart.md"
CHAINS = "docs/chains.md"
CHECKPOINT_POLICY = "docs/checkpoint_policy.md"
COMPILE = "docs/compile.md"
TOP_PAGES = [name for name in ("CONTRIBUTING.md", "GLOSSARY.md") if (ROOT / name).exists()]
PAGES = [README, *TOP_PAGES, *sorted(f"docs/{path.name}" for path in ROOT.glob("docs/*.md"))]
DEVELOPER_PAGES = [*TOP_PAGES, "docs/developers.md", "docs/glossary.md"]
"""The pages that name modules, classes and functions of the code."""

FOLDERS = "stages|schemas|tests|data|workflow|reports|tightfit|examples"
PATH = re.compile(rf"`((?:{FOLDERS})/[\w./]*|[\w-]+\.(?:txt|yaml|md))`")
SHORT_FILES = {"mine.yaml", "partitions.yaml"}
"""Files that pages name without their folder, or that are the reader's."""
PLACEHOLDER = re.compile(r"[^/]*(?:NAME|STAGE).*")
"""What stands in a path for any name."""

MAX_README_LINES = 130
MAX_GLOSSARY_TERMS = 70
MAX_PAGE_LINES = 400
SMALL_README = {
    '"n_layer": 6': '"n_layer": 1',
    '"n_embd": 384': '"n_embd": 32',
    '"n_head": 6': '"n_head": 2',
    '"vocab_size": 5000': '"vocab_size": 100',
    '"n_positions": 256': '"n_positions": 16',
    'budget="20%"': 'budget="50%"',
}
"""What makes the model of the README small."""


def page_text(name: str) -> str:
    return (ROOT / name).read_text()


def python_blocks(name: str) -> list[str]:
    """The Python code of a page, in order."""
    return [
        textwrap.dedent(block)
        for block in re.findall(r"^ *```python\n(.*?)^ *```$", page_text(name), re.M | re.S)
    ]


def heading_anchors(text: str) -> set[str]:
    titles = re.findall(r"^#+ (.*)$", text, re.M)
    return {re.sub(r"[^\w\s-]", "", title).lower().replace(" ", "-") for title in titles}


def navigation() -> set[str]:
    """The pages of the navigation, as paths from the root."""
    return {f"docs/{name}" for name in re.findall(r": (\w+\.md)$", page_text("mkdocs.yml"), re.M)}


@pytest.mark.parametrize("name", PAGES)
def test_paths_exist(name: str) -> None:
    named = {PLACEHOLDER.sub("", path) for path in PATH.findall(page_text(name))}
    places = (ROOT, (ROOT / name).parent)
    missing = {path for path in named if not any((place / path).exists() for place in places)}
    assert not missing - SHORT_FILES


@pytest.mark.parametrize("name", DEVELOPER_PAGES)
def test_names_exist(name: str) -> None:
    text = re.sub(r"`make [^`]*`", "", page_text(name))
    named = {name for name in re.findall(r"`(\w+)(?:\([\w, ]*\))?`", text) if "NAME" not in name}
    folders = ("stages", "schemas", "tightfit", "tests")
    sources = [path.read_text() for folder in folders for path in (ROOT / folder).rglob("*.py")]
    known = set(re.findall(r"\w+", " ".join(sources)))
    assert not named - known - {"DEVICE"}


def test_modules_that_the_code_names_exist() -> None:
    missing = []
    for folder in ("stages", "schemas", "tightfit"):
        for path in (ROOT / folder).rglob("*.py"):
            for name in re.findall(r"`((?:stages|schemas)(?:\.\w+)+)`", path.read_text()):
                parts = name.split(".")
                places = [ROOT.joinpath(*parts), ROOT.joinpath(*parts[:-1])]
                if not any(p.is_dir() or p.with_suffix(".py").exists() for p in places):
                    missing.append((path, name))
    assert not missing


@pytest.mark.parametrize("name", PAGES)
def test_links_lead_to_files(name: str) -> None:
    page = ROOT / name
    for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", page_text(name)):
        assert (page.parent / target).exists(), target


def test_every_page_is_in_the_navigation() -> None:
    assert navigation() == {page for page in PAGES if page.startswith("docs/")}


def test_the_glossary_is_short() -> None:
    terms = page_text("docs/glossary.md").partition("## Symbols")[0]
    assert 0 < len(re.findall(r"^[-|*] ?\*\*", terms, re.M)) <= MAX_GLOSSARY_TERMS


def test_the_reference_has_all_public_names() -> None:
    shown = re.findall(r"^::: tightfit\.(?:[\w.]+\.)?(\w+)$", page_text("docs/reference.md"), re.M)
    assert set(tightfit.__all__) - {"__version__"} <= set(shown)


@pytest.mark.parametrize("name", PAGES)
def test_links_lead_to_headings(name: str) -> None:
    page = ROOT / name
    for target, heading in re.findall(r"\]\((?!https?:)([^)#]*)#([^)]+)\)", page_text(name)):
        text = (page.parent / target if target else page).read_text()
        assert heading in heading_anchors(text), (target, heading)


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_read_in_one_sitting(name: str) -> None:
    limit = MAX_README_LINES if name == README else MAX_PAGE_LINES
    assert len(page_text(name).splitlines()) <= limit


def test_the_targets_of_make_exist() -> None:
    made = {
        target
        for name in PAGES
        for target in re.findall(r"(?:`|^    )make (\w[\w-]*)(?= |`|$)", page_text(name), re.M)
    }
    targets = set(re.findall(r"^([\w-]+):", page_text("Makefile"), re.M))
    assert made and made <= targets


def test_the_configuration_page_has_all_keys() -> None:
    whole = json.loads(page_text("schemas/config.schema.json"))
    schema, solver = whole["properties"], whole["$defs"]["solver"]
    models = schema["models"]["additionalProperties"]
    keys = {*schema} - {"solver"} | {f"solver.{key}" for key in solver["properties"]}
    keys |= {f"models.NAME.{key}" for key in models["properties"]}
    chains = schema["chains"]["additionalProperties"]
    keys |= {f"chains.NAME.{key}" for key in chains["properties"]}
    rows = re.findall(r"^\| (`.*?) \|", page_text("docs/configuration.md"), re.M)
    assert keys <= set(re.findall(r"`([\w.]+)`", " ".join(rows)))


@pytest.mark.parametrize("name", PAGES)
def test_code_blocks_are_python(name: str) -> None:
    for block in python_blocks(name):
        ast.parse(block)


@pytest.mark.usefixtures("brief_search")
@pytest.mark.parametrize("name", [README, QUICKSTART])
def test_code_blocks_run(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = "\n".join(python_blocks(name))
    if name == README:
        for size, small in SMALL_README.items():
            assert size in code
            code = code.replace(size, small)
    script = tmp_path / "blocks.py"
    script.write_text(code)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    result: dict[str, Any] = runpy.run_path(str(script))
    assert result["loss"].isfinite()
    assert result["plan"].peak > 0


def test_the_checkpoint_policy_of_the_page_fits(tmp_path: Path) -> None:
    script = tmp_path / "blocks.py"
    script.write_text("\n".join(python_blocks(CHECKPOINT_POLICY)))
    result: dict[str, Any] = runpy.run_path(str(script))
    assert result["loss"].isfinite()
    assert result["policy"].bound <= result["policy"].seconds


def test_the_code_of_the_page_of_compile_runs(tmp_path: Path) -> None:
    script = tmp_path / "blocks.py"
    script.write_text("\n".join(python_blocks(COMPILE)))
    result: dict[str, Any] = runpy.run_path(str(script))
    assert result["loss"].isfinite()
    assert [graph.fits for graph in result["compilation"].graphs.values()] == [True]


def test_the_chains_of_the_page_are_planned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "chains.py").write_text("\n".join(python_blocks(CHAINS)))
    runpy.run_path("chains.py")
    [command] = re.findall(r"^    tightfit (chain .*--strategy join .*)$", page_text(CHAINS), re.M)
    assert main(command.split()) == 0
    assert (tmp_path / "join-plan" / "plan.json").exists()


def test_the_page_of_chains_has_all_columns() -> None:
    rows = re.findall(r"^\| (`.*?) \|", page_text(CHAINS), re.M)
    assert set(re.findall(r"`(\w+)`", " ".join(rows))) == set(CHAIN.schema.names)
