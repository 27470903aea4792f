"""A mixed-integer program as it is written down, row by row."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Indices = NDArray[np.int32]


class Term(NamedTuple):
    """A variable, by its column, or a constant where the column is -1."""

    column: int = -1
    constant: float = 0.0


Terms = list[tuple[float, Term]]
"""Weights with what they weigh."""
NOTHING, ONE = Term(), Term(constant=1.0)


class SparseProgram(NamedTuple):
    """Minimise `cost` over columns between `low` and `high`, those of `integral` in whole numbers;
    each row, sparse by `start`, `column` and `value`, is at least its `least`. All are bounded.
    `possible` is False where a row of constants does not hold."""

    cost: Floats
    low: Floats
    high: Floats
    integral: NDArray[np.bool_]
    least: Floats
    start: Indices
    column: Indices
    value: Floats
    possible: bool


def joined(program: SparseProgram, rows: Matrix) -> SparseProgram:
    """A program with further rows over its columns."""
    return program._replace(
        least=np.concatenate([program.least, np.array(rows.least, np.float64)]),
        start=np.concatenate(
            [program.start, program.start[-1] + np.array(rows.start[1:], np.int32)]
        ),
        column=np.concatenate([program.column, np.array(rows.column, np.int32)]),
        value=np.concatenate([program.value, np.array(rows.value, np.float64)]),
        possible=rows.possible,
    )


@dataclass
class Matrix:
    """Columns and rows in the order in which they are added."""

    cost: list[float] = field(default_factory=list)
    low: list[float] = field(default_factory=list)
    high: list[float] = field(default_factory=list)
    integral: list[bool] = field(default_factory=list)
    least: list[float] = field(default_factory=list)
    start: list[int] = field(default_factory=lambda: [0])
    column: list[int] = field(default_factory=list)
    value: list[float] = field(default_factory=list)
    possible: bool = True

    def binary(self, cost: float = 0.0, at_least: float = 0.0) -> Term:
        """A new variable that is 0 or 1."""
        return self._column(cost, at_least, 1.0, True)

    def share(self, cost: float = 0.0, at_most: float = 1.0) -> Term:
        """A new variable from 0 to `at_most`, parts allowed."""
        return self._column(cost, 0.0, at_most, False)

    def _column(self, cost: float, low: float, high: float, integral: bool) -> Term:
        self.cost.append(cost)
        self.low.append(low)
        self.high.append(high)
        self.integral.append(integral)
        return Term(len(self.cost) - 1)

    def at_least(
        self, least: float, terms: Iterable[tuple[float, Term]], unit: float = 1.0
    ) -> None:
        """Adds the row: the weighted sum of terms is at least so much. A row is handed on in
        `unit`s; bytes are whole numbers until then, whose sums are exact."""
        weights: dict[int, float] = {}
        for weight, (column, constant) in terms:
            if column < 0:
                least -= weight * constant
            elif weight:
                weights[column] = weights.get(column, 0.0) + weight
        if weights and unit == 1.0:
            self._row(least, weights)
        elif weights:
            self._row(least / unit, {column: weight / unit for column, weight in weights.items()})
        else:
            self.possible = self.possible and least <= 0

    def _row(self, least: float, weights: dict[int, float]) -> None:
        sure, low, high = 0.0, self.low, self.high
        for column, weight in weights.items():
            sure += weight * (low[column] if weight > 0 else high[column])
        if least <= sure:
            return
        self.column += weights
        self.value += weights.values()
        self.start.append(len(self.column))
        self.least.append(least)

    def implied(self, claim: Term, grounds: Iterable[Term]) -> None:
        """Adds the row: the claim, which is at most 1, is at most the sum of the grounds."""
        found = [(1.0, ground) for ground in grounds]
        for _, ground in found:
            if ground is ONE:
                return
        self.at_least(0.0, [*found, (-1.0, claim)])

    def without_rows(self) -> Matrix:
        """The columns alone."""
        return replace(self, least=[], start=[0], column=[], value=[])

    def sparse(self) -> SparseProgram:
        """The program as arrays."""
        return SparseProgram(
            np.array(self.cost, np.float64),
            np.array(self.low, np.float64),
            np.array(self.high, np.float64),
            np.array(self.integral, np.bool_),
            np.array(self.least, np.float64),
            np.array(self.start, np.int32),
            np.array(self.column, np.int32),
            np.array(self.value, np.float64),
            self.possible,
        )
