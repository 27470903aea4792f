"""Sizes as expressions: what they are worth, and that they never fall while dimensions grow."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tightfit.schemas.graph.dynamic_inputs import DynamicDimension
from tightfit.schemas.graph.size_expressions import evaluate_size, is_nondecreasing, size_names
from tightfit.util.errors import ArtifactError

LIMITS = {"b": DynamicDimension("b", 2, 5), "t": DynamicDimension("t", 3, 9)}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("4*b*t + 16", 4 * 2 * 7 + 16),
        ("b*(t - 1)", 12),
        ("t // 4 * 4", 4),
        ("max(1, t - 1) % 4", 2),
        ("-b + min(t, 3)", 1),
    ],
)
def test_an_expression_is_worth_what_python_says(text: str, value: int) -> None:
    assert evaluate_size(text, {"b": 2, "t": 7}) == value
    assert size_names(text) <= {"b", "t"}


def test_a_number_is_a_size() -> None:
    assert evaluate_size(7, {}) == 7
    assert size_names(7) == set()
    assert is_nondecreasing(7, LIMITS)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "b +",
        "print(1)",
        "b.c",
        "b ** 2",
        "b / 2",
        "t // b",
        "t % 0",
        "max(b)",
        "[b]",
        "1.5",
        "max",
    ],
)
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ArtifactError, match="is no size"):
        evaluate_size(text, {"b": 2, "t": 7})


@pytest.mark.parametrize(
    "text", ["4*b*t", "b*t - b", "b*(t - 1) + 1", "t // 2*b", "max(1, t - 4)", "t*t - 2*t"]
)
def test_sizes_that_never_fall_are_proven(text: str) -> None:
    assert is_nondecreasing(text, LIMITS)


@pytest.mark.parametrize("text", ["-t", "b*t - 4*t", "t % 4", "20 - t // 2", "t*t - 20*t", "x"])
def test_sizes_that_may_fall_are_not(text: str) -> None:
    assert not is_nondecreasing(text, LIMITS)


def _written(parts: tuple[str, str, object]) -> str:
    return f"({parts[0]} {parts[1]} {parts[2]})"


_ATOMS = st.sampled_from(["b", "t", "1", "2", "3", "7"])
_TEXTS = st.recursive(
    _ATOMS,
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(["+", "-", "*"]), inner).map(_written),
        st.tuples(inner, st.sampled_from(["//", "%"]), st.integers(1, 5)).map(_written),
        st.tuples(inner, inner).map(lambda parts: f"max({parts[0]}, {parts[1]})"),
    ),
    max_leaves=6,
)


@given(_TEXTS)
def test_what_is_proven_is_so(text: str) -> None:
    if not is_nondecreasing(text, LIMITS):
        return
    for b, t in itertools.product(range(2, 6), range(3, 10)):
        here = evaluate_size(text, {"b": b, "t": t})
        assert here <= evaluate_size(text, {"b": min(b + 1, 5), "t": t})
        assert here <= evaluate_size(text, {"b": b, "t": min(t + 1, 9)})
