"""Names are the field's standard terms: each class has one, and no name needs a glossary."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.test_imports import name_of, sources

HOOKS = {"__torch_function__", "__torch_dispatch__"}
"""Methods whose parameters PyTorch names."""

VERBS = set(
    """
    accumulates anneal audit capture check decode deepcopy describe dir dominates emit encode fits
    flatten fuse getattr load main offload parse plan preallocate precedes prefetch probe profile
    read render repeat replace require reseed resolve restore restride run simulate solve trace undo
    validate wait write """.split()
)
TERMS = set(
    """
    aliases allocations alternatives ancestors anchors arguments assignment bandwidth base bound
    budgets bytes candidates cell chain class constants cost default device digest digests
    dominators environment executions extent failures field figures fingerprint forms frontier
    function global globals gradients groups guards item key leaves link median memory meta
    metadata microseconds modules moves neighbors node notes number operand operations operator
    ops output outputs part peak position prelude provenance rank readers references roofline row
    rows samples sequence sha signature size sizes slack solutions storage storages stores strides
    subtitle table tangents tensors type units values version versions writes additions
    """.split()
)
"""Words that name a function at the top of a module alone."""

POINTING = set(
    """
    again ahead alike alone already apart aside away before behind below beside besides between
    beyond elsewhere ever far farther further here home inside later least less near now other
    others own rest same so still such then there throughout thus together unlike whole
    within without
    """.split()
)
IRREGULAR = set("kept sent told held made left lost found gone given".split())
PARTICIPLES = ("ed", "en", "ing")
FIELD = {"grouping", "naming", "pricing", "staging", "timing", "formatting", "planning", "pickling"}
FIELD |= {"unsupported", "aliasing"}
"""Nouns of the field that end as participles do."""


def is_vague(name: str) -> bool:
    """Whether a name is a bare participle or a pointing word."""
    participle = name.endswith(PARTICIPLES) and "_" not in name and name not in FIELD
    return participle or name in POINTING | IRREGULAR


HOUSE = sources("stages", "schemas", "tightfit")


@pytest.mark.parametrize(
    ("name", "vague"),
    [("kept", True), ("beside", True), ("sending", True), ("staging", False), ("lineage", False)],
)
def test_vague_names_are_told_apart(name: str, vague: bool) -> None:
    assert is_vague(name) == vague


def test_no_two_classes_share_a_name() -> None:
    files = defaultdict(list)
    for path in HOUSE:
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                files[node.name].append(name_of(path))
    assert not {name: found for name, found in files.items() if len(found) > 1}


def test_no_module_has_a_vague_name() -> None:
    assert not [name_of(path) for path in HOUSE if is_vague(path.stem)]


def test_a_function_of_one_word_is_a_verb_or_a_term_of_the_field() -> None:
    wrong = [
        f"{name_of(path)}: {node.name}"
        for path in HOUSE
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.FunctionDef)
        and "_" not in (word := node.name.strip("_"))
        and word not in VERBS | TERMS
    ]
    assert not wrong


def names_of(tree: ast.Module) -> set[str]:
    """What the top of a module defines and imports."""
    found = set()
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            found |= {(alias.asname or alias.name).split(".")[0] for alias in node.names}
    return found


def hidden_names(path: Path) -> Iterator[str]:
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


@pytest.mark.parametrize("path", HOUSE, ids=name_of)
def test_no_local_name_hides_one_of_its_module(path: Path) -> None:
    assert not [*hidden_names(path)]
