"""Each name of PyTorch that only a GPU would ask for is one that PyTorch has, and each call of it
takes what it is given: a slip would not show before there is one."""

from __future__ import annotations

import ast
import functools
import inspect
import re
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo.trace_rules as rules

ROOT = Path(__file__).parents[3]
FILES = sorted(
    path
    for folder in ("stages", "tightfit", "tests/gpu")
    for path in (ROOT / folder).rglob("*.py")
    if "torch" in path.read_text()
)
WANTED = re.compile(r"torch\.(cuda|_C|backends|OutOfMemoryError)\b")
NAMES = re.compile(r"torch(\.\w+)+")


@functools.cache
def tree(path: Path) -> ast.Module:
    """The syntax of a file."""
    return ast.parse(path.read_text())


def whole(node: ast.expr) -> str:
    """The dotted name that an expression is, "" where it is none."""
    text = ast.unparse(node) if isinstance(node, ast.Attribute) else ""
    return text if WANTED.match(text) and NAMES.fullmatch(text) else ""


def names() -> list[tuple[str, str]]:
    """The names of PyTorch for GPUs, each with a file that says it."""
    found: dict[str, str] = {}
    for path in FILES:
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.Attribute) and whole(node):
                found.setdefault(whole(node), str(path.relative_to(ROOT)))
    return sorted(found.items())


def calls() -> list[tuple[str, ast.Call]]:
    """The calls of what PyTorch has under `torch.cuda`, each with its name and place."""
    return [
        (f"{whole(node.func)} in {path.relative_to(ROOT)}:{node.lineno}", node)
        for path in FILES
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Call) and whole(node.func).startswith("torch.cuda")
    ]


@functools.cache
def of_cuda_builds() -> frozenset[str]:
    """Names that PyTorch lists of its own, those of builds for CUDA among them."""
    listed: Any = rules.torch_name_rule_map
    return frozenset(name for known in listed for name in known if isinstance(name, str))


def reached(name: str) -> Any:
    """The object of a dotted name; raises AttributeError where there is none."""
    return functools.reduce(getattr, name.split(".")[1:], torch)


@pytest.mark.parametrize(("name", "place"), names(), ids=[name for name, _ in names()])
def test_a_name_is_one_that_pytorch_has(name: str, place: str) -> None:
    try:
        reached(name)
    except AttributeError:
        known = name in of_cuda_builds() or any(
            listed.startswith(f"{name}.") for listed in of_cuda_builds()
        )
        assert known, f"{place} says {name}, which PyTorch {torch.__version__} does not have"


@pytest.mark.parametrize(("place", "call"), calls(), ids=[place for place, _ in calls()])
def test_a_call_gives_what_is_taken(place: str, call: ast.Call) -> None:
    function = reached(whole(call.func))
    try:
        signature = inspect.signature(function)
    except ValueError:
        pytest.skip("says nothing of what it takes")
    starred = any(isinstance(each, ast.Starred) for each in call.args)
    keywords = {each.arg: None for each in call.keywords if each.arg is not None}
    assert not starred and len(keywords) == len(call.keywords)
    signature.bind(*[None] * len(call.args), **keywords)


def counters() -> set[str]:
    """The counters of memory that are asked for."""
    found = set()
    for path in FILES:
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                found |= set(re.findall(r"\w+_bytes\.\w+\.\w+", node.value))
    return found


def test_counters_of_memory_are_those_that_pytorch_tells() -> None:
    """As its own documentation lists them."""
    text = inspect.getdoc(torch.cuda.memory_stats) or ""
    listed = set()
    for name, parts, ends in re.findall(r'"(\w+)\.\{([\w,]+)\}\.\{([\w,]+)\}"', text):
        listed |= {f"{name}.{part}.{end}" for part in parts.split(",") for end in ends.split(",")}
    assert counters() and counters() <= listed
