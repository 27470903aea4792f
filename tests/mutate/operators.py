"""Ways to plant a fault: those of Cosmic Ray that suit this code, and two more."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import parso
from cosmic_ray.operators.operator import Example, Operator
from cosmic_ray.plugins import get_operator, operator_names

Position = tuple[tuple[int, int], tuple[int, int]]

COMPARISONS = "Eq_NotEq NotEq_Eq Lt_LtE Lt_GtE LtE_Lt LtE_Gt Gt_GtE Gt_LtE GtE_Gt GtE_Lt"
IDENTITY = "Is_IsNot IsNot_Is"
BINARY = "Add_Sub Sub_Add Mul_Div Div_Mul Mul_FloorDiv FloorDiv_Mul Mod_FloorDiv Pow_Mul"
BITS = "BitOr_BitAnd BitAnd_BitOr LShift_RShift RShift_LShift"
OTHERS = (
    *("AddNot", "ReplaceTrueWithFalse", "ReplaceFalseWithTrue", "ReplaceAndWithOr"),
    *("ReplaceOrWithAnd", "ReplaceBreakWithContinue", "ReplaceContinueWithBreak"),
    *("NumberReplacer", "ZeroIterationForLoop", "ReplaceUnaryOperator_Delete_Not"),
)
"""Those of Cosmic Ray's that give plausible faults: of two numbers of one order another order, of a
sum a difference. `a // b` where sets are joined ends every test, and says nothing of them."""


@functools.cache
def operators() -> tuple[Operator, ...]:
    """One of each."""
    pairs = " ".join((COMPARISONS, IDENTITY, BINARY, BITS)).split()
    fit = [name for name in operator_names() if _fits(name.partition("/")[2], pairs)]
    return (*(get_operator(name)() for name in fit), Omit(), ReplaceMembership())


def _fits(name: str, pairs: list[str]) -> bool:
    kind, _, pair = name.partition("Operator_")
    replaced = kind in ("ReplaceComparison", "ReplaceBinary") and pair in pairs
    return replaced or name in OTHERS


class Omit(Operator):
    """Leaves out a statement: a call, a `raise`, an assignment to an attribute or an item, or one
    that changes what is there."""

    def mutation_positions(self, node: Any) -> Iterator[Position]:
        if _omitted(node):
            yield node.start_pos, node.end_pos

    def mutate(self, node: Any, index: int) -> Any:
        return parso.parse(f"{node.get_first_leaf().prefix}pass")

    @classmethod
    def examples(cls) -> tuple[Example, ...]:
        return tuple(Example(text, "pass") for text in ("raise error", "a.b = c", "a += b", "f(a)"))


def _omitted(node: Any) -> bool:
    if node.parent is None or node.parent.type != "simple_stmt":
        return False
    if node.type == "expr_stmt":
        augmented = node.children[1].type == "operator" and node.children[1].value != "="
        return augmented or node.children[0].type == "atom_expr"
    if node.type == "atom_expr":
        return node.children[-1].children[0].value == "("
    return node.type == "raise_stmt"


class ReplaceMembership(Operator):
    """`in` for `not in` and the other way round."""

    def mutation_positions(self, node: Any) -> Iterator[Position]:
        for place in _memberships(node):
            yield node.children[place].start_pos, node.children[place].end_pos

    def mutate(self, node: Any, index: int) -> Any:
        place = list(_memberships(node))[index]
        word = " in" if "not" in node.children[place].get_code() else " not in"
        node.children[place] = parso.parse(word)
        return node

    @classmethod
    def examples(cls) -> tuple[Example, ...]:
        return (Example("a in b", "a not in b"), Example("a not in b", "a in b"))


def _memberships(node: Any) -> Iterator[int]:
    if node.type == "comparison":
        for place in range(1, len(node.children), 2):
            if node.children[place].get_code().split() in (["in"], ["not", "in"]):
                yield place
