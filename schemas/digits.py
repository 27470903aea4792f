"""Whole numbers in texts that come from other people."""

from __future__ import annotations

import argparse

MOST_DIGITS = 19
"""Digits of the largest number that such a text may say."""
MOST_COUNT = 65_536
"""The most threads, jobs or steps of a grid that an option asks for."""


def is_number(text: str) -> bool:
    """Whether a text is a whole number in digits from 0 to 9, not below 0, that `int` takes."""
    return text.isascii() and text.isdigit() and len(text) <= MOST_DIGITS


def count(text: str) -> int:
    """How many of something an option asks for; raises ArgumentTypeError where that is no number
    from 1 to `MOST_COUNT`."""
    if not is_number(text) or not 1 <= int(text) <= MOST_COUNT:
        raise argparse.ArgumentTypeError(f"{text} is not a number from 1 to {MOST_COUNT}")
    return int(text)
