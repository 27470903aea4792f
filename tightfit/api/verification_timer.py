"""How long the planned steps of a check take beside those of the model."""

from __future__ import annotations

import time

from tightfit.util.progress import ProgressCallback

SHORTEST_SECONDS = 1.0
"""Seconds of the model's two steps below which copies and comparisons take too much of the time."""


class VerificationTimer:
    """Hears when a check begins the model's steps, and then those of its plan, and tells its user.

    On the CPU it counts seconds of the processor, which other work hardly changes, on a GPU those
    of the clock on the wall.

    Args:
        report: What is told of each step.
        device: The device of the steps.
    """

    def __init__(self, report: ProgressCallback, device: str) -> None:
        self._report = report
        self._seconds = time.process_time if device == "cpu" else time.perf_counter
        self._begun: list[float] = []

    def __call__(self, done: int, total: int, label: str) -> None:
        """Notes when a step begins; arguments as of a `ProgressCallback`."""
        self._begun.append(self._seconds())
        self._report(done, total, label)

    def describe_ratio(self) -> str:
        """The measured ratio as a clause; "" if there were other steps than one pair, or the
        model's took less than `SHORTEST_SECONDS`."""
        if len(self._begun) != 2:
            return ""
        original = self._begun[1] - self._begun[0]
        planned = self._seconds() - self._begun[1]
        if original < SHORTEST_SECONDS:
            return ""
        return f"{planned / original:.2f} times the model's own time in the two steps of its check"
