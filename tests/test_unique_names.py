"""One word, one meaning: names of classes, and local names that hide those of their module."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.test_imports import ROOMS, TORCH_ROOMS, name_of, sources

RUNTIME = "stages/generate/runtime"
"""What travels with a module imports nothing of the house but copies of `stages/device`."""
TWICE = {"Device", "Leaf", "Option", "Place", "State", "Task", "Updates", "Value", "Way"}
"""Classes whose names still have two meanings where one module could import both."""
HOOKS = {"__torch_function__", "__torch_dispatch__"}
"""Methods whose parameters PyTorch names."""


def room_of(path: Path) -> str:
    parts = name_of(path).split("/")
    if name_of(path).startswith(RUNTIME):
        return "runtime"
    return parts[1] if parts[0] == "stages" else parts[0]


@cache
def classes() -> dict[str, list[tuple[str, str]]]:
    """By name the rooms and files of the public classes."""
    found = defaultdict(list)
    for path in sources("stages", "schemas"):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found[node.name].append((room_of(path), name_of(path)))
    return found


def seen_from(room: str) -> set[str]:
    """The rooms whose classes a module of a room may import, its own among them."""
    if room == "runtime":
        return {"runtime"}
    return {room, "schemas", "replay"} | ({"device"} if room in TORCH_ROOMS else set())


@pytest.mark.parametrize("room", [*ROOMS, "runtime"])
def test_a_class_has_its_name_alone(room: str) -> None:
    seen = {
        name: files
        for name, places in classes().items()
        if len(files := [file for home, file in places if home in seen_from(room)]) > 1
    }
    assert not {name: files for name, files in seen.items() if name not in TWICE}


def names_of(tree: ast.Module) -> set[str]:
    """What the top of a module defines and imports."""
    found = set()
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            found |= {(alias.asname or alias.name).split(".")[0] for alias in node.names}
    return found


def hidden(path: Path) -> Iterator[str]:
    """The local names of functions that hide a function, a class or an import of their module."""
    tree = ast.parse(path.read_text())
    outer = names_of(tree)
    for function in ast.walk(tree):
        if not isinstance(function, ast.FunctionDef) or function.name in HOOKS:
            continue
        shared = {
            n for node in ast.walk(function) if isinstance(node, ast.Global) for n in node.names
        }
        for node in ast.walk(function):
            local = ""
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                local = node.id
            elif isinstance(node, ast.arg):
                local = node.arg
            elif isinstance(node, ast.FunctionDef) and node is not function:
                local = node.name
            if local in outer - shared:
                yield f"{local} in {function.name}"


@pytest.mark.parametrize("path", sources("stages", "schemas", "tightfit"), ids=name_of)
def test_no_local_name_hides_one_of_its_module(path: Path) -> None:
    assert not [*hidden(path)]
