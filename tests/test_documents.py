"""The documents name what is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PATH = re.compile(
    r"`((?:stages|schemas|tests|data|workflow|reports)/[\w./]*|[\w-]+\.(?:txt|yaml|md))`"
)


@pytest.mark.parametrize("name", ["CONTRIBUTING.md", "GLOSSARY.md"])
def test_paths_are_there(name: str) -> None:
    text = (ROOT / name).read_text().replace("NAME", "rotor")
    generic = {
        "stages/combine/strategies/rotor.py",
        "stages/combine/pipeline/allocators/rotor.py",
        "schemas/rotor.py",
        "schemas/machines/rotor.json",
        "stages/combine/chain_offload/planners/rotor.py",
    }
    named = set(PATH.findall(text)) - generic
    assert not {path for path in named if not (ROOT / path).exists()}
    assert not [line for line in text.splitlines() if len(line) > 104]


@pytest.mark.parametrize("name", ["CONTRIBUTING.md", "GLOSSARY.md"])
def test_names_are_there(name: str) -> None:
    text = re.sub(r"`make [^`]*`", "", (ROOT / name).read_text())
    named = set(re.findall(r"`(\w+)(?:\([\w, ]*\))?`", text)) - {"DEVICE", "NAME"}
    folders = ("stages", "schemas", "tightfit", "tests")
    sources = [path.read_text() for folder in folders for path in (ROOT / folder).rglob("*.py")]
    known = set(re.findall(r"\w+", " ".join(sources)))
    assert not named - known


def test_modules_that_the_code_names_are_there() -> None:
    missing = []
    for folder in ("stages", "schemas", "tightfit"):
        for path in (ROOT / folder).rglob("*.py"):
            for name in re.findall(r"`((?:stages|schemas)(?:\.\w+)+)`", path.read_text()):
                parts = name.split(".")
                places = [ROOT.joinpath(*parts), ROOT.joinpath(*parts[:-1])]
                if not any(p.is_dir() or p.with_suffix(".py").exists() for p in places):
                    missing.append((path, name))
    assert not missing


PAGES = ["README.md", "CONTRIBUTING.md", *sorted(f"docs/{p.name}" for p in ROOT.glob("docs/*.md"))]


@pytest.mark.parametrize("name", PAGES)
def test_links_lead_somewhere(name: str) -> None:
    page = ROOT / name
    links = re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text())
    assert not [link for link in links if not (page.parent / link).exists()]
    assert name == "README.md" or name in {"CONTRIBUTING.md"} or f"({name})" in _readme()


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_read_in_one_sitting(name: str) -> None:
    assert len((ROOT / name).read_text().splitlines()) <= 400


@pytest.mark.parametrize("name", PAGES)
def test_links_lead_to_headings(name: str) -> None:
    page = ROOT / name
    for target, heading in re.findall(r"\]\((?!https?:)([^)#]*)#([^)]+)\)", page.read_text()):
        titles = re.findall(
            r"^#+ (.*)$", (page.parent / target if target else page).read_text(), re.M
        )
        found = {re.sub(r"[^\w\s-]", "", title).lower().replace(" ", "-") for title in titles}
        assert heading in found, (target, heading)


def _readme() -> str:
    return (ROOT / "README.md").read_text()


def test_targets_are_there() -> None:
    made = set(re.findall(r"`make (\w+)", (ROOT / "CONTRIBUTING.md").read_text()))
    targets = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert made and made <= targets
