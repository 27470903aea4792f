"""Whole numbers in texts that come from other people."""

from __future__ import annotations

MOST_DIGITS = 19
"""Digits of the largest number that such a text may say."""


def is_number(text: str) -> bool:
    """Whether a text is a whole number in digits from 0 to 9, not below 0, that `int` takes."""
    return text.isascii() and text.isdigit() and len(text) <= MOST_DIGITS
