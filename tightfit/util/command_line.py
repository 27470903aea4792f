"""What a command of the command line made of what, as its records will tell."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from tightfit.util.errors import ConfigError


@dataclass(frozen=True)
class LineageEntry:
    """Files or modules, the files they were made of, and the settings that the command was given.

    `settings` are plain values by name. `factory` and `search_path` name the model's source where
    the command ran it.
    """

    outputs: Sequence[Path | str]
    inputs: Sequence[Path | str] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    factory: str = ""
    search_path: Sequence[Path | str] = ()


MAX_DIGITS = 19
"""Digits of the largest number that such a text may say."""
MAX_COUNT = 65_536
"""The most threads, jobs or steps of a grid that an option asks for."""


def is_integer_text(text: str) -> bool:
    """Whether a text is a whole number in digits from 0 to 9, not below 0, that `int` takes."""
    return text.isascii() and text.isdigit() and len(text) <= MAX_DIGITS


def parse_count(text: str) -> int:
    """How many of something an option asks for; raises ArgumentTypeError where that is no number
    from 1 to `MAX_COUNT`."""
    if not is_integer_text(text) or not 1 <= int(text) <= MAX_COUNT:
        raise argparse.ArgumentTypeError(f"{text} is not a number from 1 to {MAX_COUNT}")
    return int(text)


def parse_settings(text: str) -> dict[str, Any]:
    """Settings by name; raises ArgumentTypeError where they are no JSON object."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise argparse.ArgumentTypeError(f"{text} is not a JSON object")
    return found


def parse_json_object(text: str | bytes, where: str) -> dict[str, Any]:
    """The JSON object of an option's text or file; raises ConfigError, which begins with `where`,
    if it is none."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{where} is not JSON ({error})") from error
    if not isinstance(found, dict):
        raise ConfigError(f"{where} is not a JSON object")
    return found


_TIMES = ((1.0, "s", 2), (1e-3, "ms", 1), (1e-6, "µs", 0))


def format_duration(seconds: float) -> str:
    """A time in the largest unit that fits: "1.23 s", "412.0 ms", "38 µs"."""
    for unit, name, decimals in _TIMES:
        if abs(seconds) >= unit * 0.9995:
            return f"{seconds / unit:.{decimals}f} {name}"
    return "0 s" if seconds == 0 else f"{seconds * 1e6:.1f} µs"


_SIZES = ((1e9, "GB", 2), (1e6, "MB", 1), (1e3, "kB", 1))


def format_bytes(amount: float) -> str:
    """Bytes with one decimal in the largest decimal unit that fits: "144.7 MB"."""
    for unit, name, decimals in _SIZES:
        if abs(amount) >= unit * (1 - 0.5 * 10.0 ** -(decimals + 3)):
            return f"{amount / unit:.{decimals}f} {name}"
    return f"{amount:.0f} B"


def format_count(number: int, noun: str) -> str:
    """A number of things: "1 op", "12 ops"."""
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def to_single_line(text: str, kept: str = "") -> str:
    """A text on one line whatever files it quotes: a space for each character that does not print,
    but for those of `kept`."""
    return "".join(part if part.isprintable() or part in kept else " " for part in text)


def format_status(status: str, sentence: str) -> str:
    """What a command says of its plan: the sentence on one line, with the status before it."""
    said = sentence if sentence.startswith(f"{status}:") else f"{status}: {sentence}"
    return to_single_line(said)


def is_standalone(options: argparse.Namespace) -> bool:
    """Whether a command is run by itself: with a file for errors many are, and a table at the end
    has what they say."""
    return getattr(options, "error_file", None) is None


def print_status(status: str, sentence: str, options: argparse.Namespace) -> None:
    """Prints what a command that is run by itself says of its plan."""
    if is_standalone(options):
        print(format_status(status, sentence))


def print_plan_status(status: str, sentence: str, options: argparse.Namespace) -> None:
    """Prints what a command says of the plan that it has written into the folder `options.out`: if
    it is one of many commands that of an infeasible plan, with the folder, and nothing of others.
    """
    if status == "infeasible" and not is_standalone(options):
        print(f"{options.out}: {format_status(status, sentence)}", flush=True)
    else:
        print_status(status, sentence, options)


T = TypeVar("T")


def find_registered(kind: str, name: str, known: Mapping[str, T]) -> T:
    """The entry of that name; raises ConfigError, which names what there is, when there is none."""
    if name not in known:
        raise ConfigError(f"{kind} {name!r} is not known, expected one of {', '.join(known)}")
    return known[name]
