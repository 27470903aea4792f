"""Sizes as expressions of a few named dimensions: texts that are read, evaluated and compared.

The language is that of Python: integers, names, `+`, `-`, `*`, `//`, `%`, `max(a, b)` and
`min(a, b)`.

Example:
    >>> evaluate_size("4*batch*tokens + 16", {"batch": 2, "tokens": 5})
    56
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from functools import cache
from types import CodeType

from tightfit.schemas.graph.dynamic_inputs import DynamicDimension
from tightfit.util.errors import ArtifactError

Size = int | str
"""A size: a number, or the text of an expression."""

_MAX_LENGTH = 2000
_OPERATORS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_FUNCTIONS = {"max": max, "min": min}
_Polynomial = dict[tuple[str, ...], int]
"""Coefficients of products of variables, each product as its names in order."""


def evaluate_size(size: Size, sizes: Mapping[str, int]) -> int:
    """A size where the dimensions have these sizes."""
    if isinstance(size, int):
        return size
    value: int = eval(_compile_size(size), {"__builtins__": {}, **_FUNCTIONS}, dict(sizes))
    return value


def size_names(size: Size) -> set[str]:
    """The names of the dimensions in a size."""
    if isinstance(size, int):
        return set()
    nodes = ast.walk(_parse_size(size))
    return {node.id for node in nodes if isinstance(node, ast.Name)} - set(_FUNCTIONS)


def is_nondecreasing(size: Size, dimensions: Mapping[str, DynamicDimension]) -> bool:
    """Whether it is proven that a size never falls while dimensions grow within their limits.

    With each variable written as its smallest value and a rest that is not negative, no product has
    a negative coefficient. Quotients by a number and maxima of such sizes are variables, too. False
    where this proves nothing.
    """
    if isinstance(size, int):
        return True
    smallest = {name: one.smallest for name, one in dimensions.items()}
    polynomial = _shifted_polynomial(_parse_size(size), smallest)
    return polynomial is not None and all(
        coefficient >= 0 for names, coefficient in polynomial.items() if names
    )


@cache
def _parse_size(text: str) -> ast.expr:
    try:
        node = ast.parse(text, mode="eval").body if len(text) <= _MAX_LENGTH else None
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        node = None
    if node is None or not _is_size(node):
        raise ArtifactError(f"{text[:80]!r} is no size")
    return node


def _is_size(node: ast.AST) -> bool:
    match node:
        case ast.Constant(value=value):
            return type(value) is int
        case ast.Name(id=name):
            return name not in _FUNCTIONS
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return _is_size(operand)
        case ast.BinOp(left=left, op=op, right=right):
            divides = isinstance(op, ast.FloorDiv | ast.Mod)
            return (
                type(op) in _OPERATORS
                and _is_size(left)
                and (_is_positive_number(right) if divides else _is_size(right))
            )
        case ast.Call(func=ast.Name(id=name), args=[left, right], keywords=[]):
            return name in _FUNCTIONS and _is_size(left) and _is_size(right)
    return False


def _is_positive_number(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and type(node.value) is int and node.value > 0


@cache
def _compile_size(text: str) -> CodeType:
    return compile(ast.Expression(_parse_size(text)), "<size>", "eval")


def _shifted_polynomial(node: ast.expr, smallest: Mapping[str, int]) -> _Polynomial | None:
    """A size as a polynomial of what variables have beyond their smallest values, None where it is
    none of nondecreasing variables."""
    match node:
        case ast.Constant(value=int() as number):
            return {(): number}
        case ast.Name(id=name):
            return {(): smallest[name], (name,): 1} if name in smallest else None
        case ast.UnaryOp(operand=operand):
            return _multiply_polynomials({(): -1}, _shifted_polynomial(operand, smallest))
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return _add_polynomials(
                _shifted_polynomial(left, smallest), _shifted_polynomial(right, smallest)
            )
        case ast.BinOp(left=left, op=ast.Sub(), right=right):
            negative = _multiply_polynomials({(): -1}, _shifted_polynomial(right, smallest))
            return _add_polynomials(_shifted_polynomial(left, smallest), negative)
        case ast.BinOp(left=left, op=ast.Mult(), right=right):
            both = _shifted_polynomial(left, smallest), _shifted_polynomial(right, smallest)
            return _multiply_polynomials(*both)
        case ast.BinOp(left=left, op=ast.FloorDiv()):
            return _shifted_variable(node, [left], smallest)
        case ast.Call(args=args):
            return _shifted_variable(node, args, smallest)
    return None


def _shifted_variable(
    node: ast.expr, parts: list[ast.expr], smallest: Mapping[str, int]
) -> _Polynomial | None:
    """A nondecreasing function of nondecreasing parts as a variable of its own."""
    for part in parts:
        polynomial = _shifted_polynomial(part, smallest)
        if polynomial is None or any(n < 0 for names, n in polynomial.items() if names):
            return None
    text = ast.unparse(node)
    return {(): evaluate_size(text, smallest), (text,): 1}


def _add_polynomials(one: _Polynomial | None, other: _Polynomial | None) -> _Polynomial | None:
    if one is None or other is None:
        return None
    return {names: one.get(names, 0) + other.get(names, 0) for names in {**one, **other}}


def _multiply_polynomials(one: _Polynomial | None, other: _Polynomial | None) -> _Polynomial | None:
    if one is None or other is None:
        return None
    found: _Polynomial = {}
    for names, factor in one.items():
        for more, number in other.items():
            together = tuple(sorted((*names, *more)))
            found[together] = found.get(together, 0) + factor * number
    return found
