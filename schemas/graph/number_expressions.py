"""Floats that follow from sizes, as texts: `tokens ** -0.5` among the arguments of an operator.

The language is that of `schemas.graph.size_expressions` with `/`, floats, and powers whose exponent
is a float. Python computes them, as it does in the model, so that they have the same bits.

Example:
    >>> evaluate_number("1.0 / tokens", {"tokens": 4})
    0.25
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from functools import cache
from types import CodeType

from tightfit.util.errors import ArtifactError

_MAX_LENGTH = 500
_OPERATORS = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod)


def evaluate_number(text: str, sizes: Mapping[str, int]) -> float:
    """A float where the dimensions have these sizes. Raises ArtifactError where it has none."""
    try:
        found = eval(_compile_number(text), {"__builtins__": {}}, dict(sizes))
    except (NameError, ArithmeticError) as error:
        raise ArtifactError(f"{text[:80]!r} is no number at {dict(sizes)}") from error
    if not isinstance(found, float):
        raise ArtifactError(f"{text[:80]!r} is no float")
    return found


@cache
def _compile_number(text: str) -> CodeType:
    try:
        node = ast.parse(text, mode="eval").body if len(text) <= _MAX_LENGTH else None
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        node = None
    if node is None or not _is_number(node):
        raise ArtifactError(f"{text[:80]!r} is no number that follows from sizes")
    return compile(ast.Expression(node), "<number>", "eval")


def _is_number(node: ast.AST) -> bool:
    match node:
        case ast.Constant(value=value):
            return type(value) in (int, float)
        case ast.Name():
            return True
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return _is_number(operand)
        case ast.BinOp(left=left, op=ast.Pow(), right=right):
            return _is_number(left) and _is_float(right)
        case ast.BinOp(left=left, op=op, right=right):
            return isinstance(op, _OPERATORS) and _is_number(left) and _is_number(right)
    return False


def _is_float(node: ast.AST) -> bool:
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        node = node.operand
    return isinstance(node, ast.Constant) and type(node.value) is float
