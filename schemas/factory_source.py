"""What the source of a module says of a factory: whether it is there, and which arguments it takes.

No code of the module runs. What the source does not say for sure, such as names that come from
elsewhere or functions that are decorated, is not judged.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator
from functools import lru_cache
from pathlib import Path

from tightfit.schemas.config_errors import find_closest

DYNAMIC_NAMES = frozenset({"__getattr__", "globals", "exec", "eval", "setattr", "vars"})
"""Names in a module that may make others which its source does not say."""


def find_function_problem(file: Path, function: str) -> str:
    """Why a module has no such function, without the subject of the sentence; "" if it may have.

    Example:
        >>> find_function_problem(Path("data/models.py"), "gpt3")
        "there is no function 'gpt3' in data/models.py, did you mean gpt2"
    """
    tree = _parse(file)
    names = None if tree is None else _bound_names(tree)
    if names is None or function in names:
        return ""
    close = find_closest(function, names)
    return f"there is no function {function!r} in {file}" + (
        f", did you mean {close}" if close else ""
    )


def find_argument_problems(
    file: Path, function: str, arguments: Collection[str]
) -> Iterator[tuple[str, str]]:
    """The keyword arguments that a function of a module does not take, each with a sentence without
    its subject, and those that it needs besides, under the name ""."""
    tree = _parse(file)
    definition = None if tree is None else _find_definition(tree, function)
    if definition is None:
        return
    given = definition.args
    accepted = [each.arg for each in (*given.args, *given.kwonlyargs)]
    for name in arguments:
        if name not in accepted and given.kwarg is None:
            close = find_closest(name, (each for each in accepted if each not in arguments))
            hint = f"did you mean {close}" if close else f"expected {_list_names(accepted)}"
            yield name, f"is no argument of {function} in {file}, {hint}"
    required = given.args[: len(given.args) - len(given.defaults)]
    required += [
        each for each, value in zip(given.kwonlyargs, given.kw_defaults, strict=True) if not value
    ]
    missing = [each.arg for each in required if each.arg not in arguments]
    if missing:
        yield "", f"lacks {_list_names(missing)}, which {function} in {file} needs"


def _list_names(names: Collection[str]) -> str:
    return ", ".join(names) or "none"


def _parse(file: Path) -> ast.Module | None:
    """The syntax tree of a file, None if it has none: then the job that imports it says so."""
    try:
        return _parse_source(file.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return None


_parse_source = lru_cache(maxsize=16)(ast.parse)


def _bound_names(tree: ast.Module) -> set[str] | None:
    """All names that a module may have, wherever they are bound; None if it may have others."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names |= {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.Name):
            names.add(node.id)
        elif isinstance(node, ast.Attribute) and node.attr in ("modules", "__dict__"):
            return None
    return None if names & {"*", *DYNAMIC_NAMES} else names


def _find_definition(tree: ast.Module, function: str) -> ast.FunctionDef | None:
    """The definition that the name stands for in the module, None if that is not sure: it is bound
    once, at the top of the module, by a definition without decorators or positional arguments."""
    own = [
        node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == function
    ]
    bound = [
        node
        for node in ast.walk(tree)
        if (isinstance(node, ast.Name) and node.id == function and not _is_read(node))
        or (isinstance(node, ast.alias) and (node.asname or node.name) in (function, "*"))
        or (isinstance(node, ast.Global) and function in node.names)
    ]
    if len(own) != 1 or bound or own[0].decorator_list or own[0].args.posonlyargs:
        return None
    nested = sum(
        isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        and node.name == function
        for node in ast.walk(tree)
    )
    return own[0] if nested == 1 else None


def _is_read(node: ast.Name) -> bool:
    return isinstance(node.ctx, ast.Load)
