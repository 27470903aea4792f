"""How people are told times and verdicts."""

from __future__ import annotations

import argparse

_TIMES = ((1.0, "s", 2), (1e-3, "ms", 1), (1e-6, "µs", 0))


def duration(seconds: float) -> str:
    """A time in the largest unit that fits: "1.23 s", "412.0 ms", "38 µs"."""
    for unit, name, decimals in _TIMES:
        if abs(seconds) >= unit * 0.9995:
            return f"{seconds / unit:.{decimals}f} {name}"
    return "0 s" if seconds == 0 else f"{seconds * 1e6:.1f} µs"


def one_line(text: str, kept: str = "") -> str:
    """A text on one line whatever files it quotes: a space for each character that does not print,
    but for those of `kept`."""
    return "".join(part if part.isprintable() or part in kept else " " for part in text)


def told(verdict: str, sentence: str) -> str:
    """What a command says of its plan: the sentence on one line, with the verdict before it."""
    said = sentence if sentence.startswith(f"{verdict}:") else f"{verdict}: {sentence}"
    return one_line(said)


def by_hand(options: argparse.Namespace) -> bool:
    """Whether a command is run by itself: with a file for errors many are, and a table at the end
    has what they say."""
    return getattr(options, "error_file", None) is None


def tell(verdict: str, sentence: str, options: argparse.Namespace) -> None:
    """Prints what a command that is run by itself says of its plan."""
    if by_hand(options):
        print(told(verdict, sentence))
