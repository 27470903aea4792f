"""Finds the expression of a number that is known at several sizes."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any

from tightfit.schemas.graph.dynamic_inputs import DynamicInputs
from tightfit.schemas.graph.number_expressions import evaluate_number
from tightfit.schemas.graph.size_expressions import Size, evaluate_size

Numbers = tuple[int | None, ...]
"""A number at each of several sizes; None where it means nothing."""

_Evaluation = Callable[[str, Mapping[str, int]], float]

_MAX_TERMS = 2
_LOOKED_AT = 64
"""How many sizes of a range, from the smallest on, are looked at."""
_MAX_DISTINGUISHING = 4


class SizeFit:
    """Expressions that sizes can be, with their values at several sizes."""

    def __init__(
        self,
        expressions: Sequence[str],
        points: Sequence[Mapping[str, int]],
        numbers: Sequence[str] = (),
    ) -> None:
        self.points = points
        self.numbers = {tuple(evaluate_number(text, at) for at in points): text for text in numbers}
        self.values: dict[tuple[int, ...], str] = {}
        names = [*points[0]]
        products = [
            f"{one}*{other}" for one, other in itertools.combinations_with_replacement(names, 2)
        ]
        for text in (*names, *expressions, *products):
            self.values.setdefault(tuple(evaluate_size(text, at) for at in points), text)
        self._known: dict[Numbers, Size | None] = {}

    def find_number(self, floats: Sequence[Any]) -> str | None:
        """The text of a float that is known at all points; None for another value."""
        if not all(type(one) is float for one in floats):
            return None
        return self.numbers.get(tuple(floats))

    def find(self, numbers: Numbers) -> Size | None:
        """The expression that has these values: a number, one of the known expressions, or a sum of
        at most two of them, each times a number, and a number. None where there is none."""
        if numbers not in self._known:
            self._known[numbers] = self._find(numbers)
        return self._known[numbers]

    def _find(self, numbers: Numbers) -> Size | None:
        seen = {number for number in numbers if number is not None}
        if len(seen) < 2:
            return seen.pop() if seen else 1
        places = [place for place, number in enumerate(numbers) if number is not None]
        for values, text in self.values.items():
            if all(values[place] == numbers[place] for place in places):
                return text
        for terms in range(1, min(_MAX_TERMS, len(places) - 2) + 1):
            for chosen in itertools.combinations(self.values.items(), terms):
                rows = [[*(values[place] for values, _ in chosen), 1] for place in places]
                factors = _solve_rows(rows, [numbers[place] or 0 for place in places])
                if factors is not None:
                    return _sum_text(factors, [text for _, text in chosen])
        return None


def distinguishing_sizes(
    expressions: Sequence[str],
    numbers: Sequence[str],
    points: Sequence[Mapping[str, int]],
    dynamic: DynamicInputs,
) -> list[dict[str, int]]:
    """Sizes that tell apart, beside `points`, expressions that are the same at all these and not in
    the whole range, such as `tokens//2` and `(tokens - 1)//2` if all are odd.

    Args:
        expressions: Expressions of sizes.
        numbers: Floats that follow from sizes, as texts.
        points: Sizes at which the values of the expressions are known.
        dynamic: The ranges of the dimensions.

    Returns:
        At most as many sizes as `_MAX_DISTINGUISHING`, the smallest that do it first.
    """
    candidates = [
        {**dynamic.largest, one.name: size}
        for one in dynamic.dimensions
        for size in range(one.smallest, min(one.largest, one.smallest + _LOOKED_AT) + 1)
    ]
    alike: dict[tuple[float, ...], list[tuple[_Evaluation, str]]] = {}
    known = [(evaluate_size, text) for text in dict.fromkeys([*points[0], *expressions])]
    for evaluate, text in (*known, *((evaluate_number, text) for text in dict.fromkeys(numbers))):
        values = tuple(evaluate(text, at) for at in points)
        alike.setdefault(values, []).append((evaluate, text))
    unclear: list[tuple[tuple[float, ...], tuple[float, ...]]] = []
    for values, texts in alike.items():
        is_constant = len(set(values)) == 1
        if len(texts) == 1 and not is_constant:
            continue
        rows = [tuple(evaluate(text, at) for at in candidates) for evaluate, text in texts]
        others = [values[:1] * len(candidates)] if is_constant else []
        unclear += [(rows[0], other) for other in (*rows[1:], *others)]
    chosen: list[dict[str, int]] = []
    while unclear and len(chosen) < _MAX_DISTINGUISHING:
        counts = [
            sum(one[place] != other[place] for one, other in unclear)
            for place in range(len(candidates))
        ]
        place = max(range(len(candidates)), key=counts.__getitem__)
        if not counts[place]:
            break
        chosen.append(candidates[place])
        unclear = [(one, other) for one, other in unclear if one[place] == other[place]]
    return chosen


def _sum_text(factors: Sequence[int], texts: Sequence[str]) -> str:
    """The text of a sum of multiples, the last factor alone."""
    *multiples, rest = factors
    terms = [
        (text if factor == 1 else f"{factor}*({text})" if " " in text else f"{factor}*{text}")
        for factor, text in zip(multiples, texts, strict=True)
        if factor
    ]
    if rest:
        terms.append(str(rest))
    return " + ".join(terms).replace("+ -", "- ")


def _solve_rows(rows: Sequence[Sequence[int]], results: Sequence[int]) -> list[int] | None:
    """The integers that all rows, which are more than these, times them give the results; None
    where there are none."""
    table = [
        [*map(Fraction, row), Fraction(result)] for row, result in zip(rows, results, strict=True)
    ]
    count = len(rows[0])
    for column in range(count):
        pivot = next((row for row in range(column, len(table)) if table[row][column]), None)
        if pivot is None:
            return None
        table[column], table[pivot] = table[pivot], table[column]
        head = [entry / table[column][column] for entry in table[column]]
        table[column] = head
        for row in range(len(table)):
            if row != column and table[row][column]:
                factor = table[row][column]
                table[row] = [a - factor * b for a, b in zip(table[row], head, strict=True)]
    if any(row[-1] for row in table[count:]):
        return None
    found = [table[column][-1] for column in range(count)]
    return [int(each) for each in found] if all(each.denominator == 1 for each in found) else None
