"""Progress of a stage: counted where the work is done, printed by the command line or shown by the
Python API."""

from __future__ import annotations

import time
from collections.abc import Callable

NOTE_PREFIX = "note: "
"""How a printed line for the user begins."""
PRINT_INTERVAL = 5.0
"""Seconds between two lines that tell how far it is."""

ProgressCallback = Callable[[int, int, str], None]
"""Takes how many parts of the work are done, of at most how many, and what is being done now, ""
where nothing is to be said of that."""


class StageProgress:
    """Receives the progress of a stage; this one ignores it."""

    def begin(self, work: str, parts: str) -> None:
        """Takes the name of the work, as "gpt2: rockmate", and that of its parts, as "budgets"."""

    def report(self, done: int, most: int, doing: str = "") -> None:
        """Takes the progress as a `ProgressCallback` does."""

    def note(self, text: str) -> None:
        """Takes a sentence for the user."""


class ProgressCounter:
    """Counts the searches for one budget, of at most so many, and reports each that is done."""

    def __init__(self, report: ProgressCallback | None = None, most: int = 0) -> None:
        self.report = report
        self.most = most
        self.done = 0

    def __call__(self) -> None:
        """One more is done."""
        self.done += 1
        if self.report is not None:
            self.report(min(self.done, self.most), self.most, "")


class LabeledProgressCounter:
    """Counts the steps of a work of several kinds, of at most so many, and reports each as it
    begins, by what it does."""

    def __init__(self, report: ProgressCallback | None = None, most: int = 0) -> None:
        self.report = report
        self.most = most
        self.done = 0

    def __call__(self, what: str) -> None:
        """A step begins, and the one before it is done."""
        if self.report is not None:
            self.report(min(self.done, self.most), self.most, what)
        self.done += 1


class TwoPhaseProgress:
    """Reports of work that follows other work, whose amount is known only then, as of one whole:
    until it begins, a `share` of that of the other is taken for it."""

    def __init__(self, report: ProgressCallback, share: float) -> None:
        self.report = report
        self.share = share
        self.before = 0

    def first(self, done: int, most: int, doing: str = "") -> None:
        """Takes what is done of the first part."""
        self.before = most
        self.report(done, most + round(most * self.share), doing)

    def second(self, done: int, most: int, doing: str = "") -> None:
        """Takes what is done of the second part."""
        self.report(self.before + done, self.before + most, doing)


class ProgressPrinter(StageProgress):
    """Prints how many parts are done, as `parts` calls them, not more often than every few
    seconds."""

    def __init__(self, work: str = "", parts: str = "") -> None:
        self.begin(work, parts)

    def begin(self, work: str, parts: str) -> None:
        """Takes the names of the work and of its parts."""
        self.work, self.parts, self.told = work, parts, time.monotonic()

    def report(self, done: int, most: int, doing: str = "") -> None:
        """Takes how far it is, and what is being done where that is known."""
        if time.monotonic() - self.told >= PRINT_INTERVAL:
            self.told = time.monotonic()
            more = f": {doing}" if doing else ""
            print(f"{self.work} at {done} of {most} {self.parts}{more}", flush=True)

    def note(self, text: str) -> None:
        """Prints a sentence for the user."""
        print(f"{NOTE_PREFIX}{text}", flush=True)
