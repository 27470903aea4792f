"""Floats that follow from sizes: what Python computes, and nothing else."""

from __future__ import annotations

import pytest

from tightfit.schemas.graph.number_expressions import evaluate_number
from tightfit.util.errors import ArtifactError


@pytest.mark.parametrize("tokens", [1, 3, 17, 1024])
def test_numbers_have_the_bits_of_python(tokens: int) -> None:
    sizes = {"tokens": tokens, "batch": 3}
    assert evaluate_number("tokens ** -0.5", sizes) == tokens**-0.5
    assert evaluate_number("(1.0 / tokens) * batch", sizes) == 1.0 / tokens * 3
    assert evaluate_number("tokens * 1.0", sizes) == float(tokens)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("tokens", "is no float"),
        ("1.0 / (tokens - 4)", "is no number at"),
        ("rows * 1.0", "is no number at"),
        ("tokens ** tokens", "is no number that follows from sizes"),
        ("9 ** 9", "is no number that follows from sizes"),
        ("tokens ** 999999.0", "is no number at"),
        ("float(tokens)", "is no number that follows from sizes"),
        ("tokens.real", "is no number that follows from sizes"),
        ("1.0 +", "is no number that follows from sizes"),
        ("1.0" + " + 1.0" * 200, "is no number that follows from sizes"),
    ],
)
def test_what_is_no_number_is_refused(text: str, said: str) -> None:
    with pytest.raises(ArtifactError, match=said):
        evaluate_number(text, {"tokens": 4})
