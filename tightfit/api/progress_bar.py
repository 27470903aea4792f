"""Tells how far a plan is: a bar where there is a terminal, a line a stage elsewhere."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator, Mapping
from typing import Any, TextIO

from tightfit.util.progress import StageProgress

STAGE_LABELS = {
    "trace": ("capturing the step", 10),
    "profile": ("measuring ops", 20),
    "partition": ("cutting into blocks", 2),
    "solve": ("solving blocks", 25),
    "combine": ("making plans", 30),
    "select": ("choosing the plan", 2),
    "generate": ("writing the module", 3),
    "check": ("comparing with the original", 8),
}
"""What each stage does, in words, and its usual share of the time in percent."""

FUSED_STAGE_LABELS = {
    "trace": STAGE_LABELS["trace"],
    "fuse": ("compiling groups", 20),
    **STAGE_LABELS,
}
"""Those of a plan with fused kernels."""

PIPELINE_STAGE_LABELS = {
    **{name: STAGE_LABELS[name] for name in ("trace", "profile", "partition", "solve")},
    "chain": ("allocating to devices", 30),
    "pipeline": ("splitting into stages", 10),
    "generate": STAGE_LABELS["generate"],
}
"""Those of a pipeline."""

LINE_INTERVAL = 5.0
"""Seconds between two lines of one stage, where there is no terminal."""


class ProgressReporter(StageProgress):
    """What is being done. Nothing is told unless `wanted`; `stream` is standard error unless
    given."""

    def __init__(
        self,
        wanted: bool = True,
        stream: TextIO | None = None,
        stages: Mapping[str, tuple[str, int]] = STAGE_LABELS,
    ) -> None:
        self.given = stream
        self.wanted = wanted
        self.stages = stages
        self.names: list[str] = list(stages)
        self.current = ""
        self.told = 0.0
        self.total = 0
        """Of how many parts something was done last."""
        self.since = (0.0, 0)
        """When the first parts of the stage were done, and how many. They may take much longer than
        the others, as where code is compiled."""
        self.bar: Any = None

    @property
    def stream(self) -> TextIO:
        """Where it is told: standard error as it is now, unless one was given."""
        return self.given or sys.stderr

    @contextlib.contextmanager
    def show_stages(self, *left_out: str) -> Iterator[None]:
        """Within it stages are told; those `left_out` are not part of the whole."""
        self.names = [name for name in self.stages if name not in left_out]
        with contextlib.ExitStack() as ending:
            if self.wanted and self.stream.isatty():
                self.bar = ending.enter_context(_create_bar(self.stream))
                self.task = self.bar.add_task(
                    "", total=sum(self.stages[name][1] for name in self.names)
                )
                ending.callback(setattr, self, "bar", None)
            yield

    def stage(self, name: str) -> None:
        """A stage begins."""
        self.current, self.told, self.since = name, time.monotonic(), (0.0, 0)
        self.total = 0
        if self.bar is not None:
            self.bar.update(self.task, description=self.stages[name][0], completed=self._before())
        else:
            self._line("")

    def report(self, done: int, most: int, doing: str = "") -> None:
        """So many parts of the stage are done, of so many, or of what it does next; `doing` is what
        is being done."""
        more = f" ({doing})" if doing else ""
        if most != self.total:
            self.total, self.since = most, (0.0, 0)
        if self.bar is not None:
            part = self.stages[self.current][1] * done / max(most, 1)
            said = f"{self.stages[self.current][0]} {done}/{most}{more}"
            self.bar.update(self.task, description=said, completed=self._before() + part)
            return
        now = time.monotonic()
        began, first = self.since
        if done and not first:
            self.since = (now, done)
        if done and now - self.told >= LINE_INTERVAL:
            self.told = now
            said = f", {done} of {most} done{more}"
            if first and done > first:
                said += f", about {(now - began) / (done - first) * (most - done):.0f} s left"
            self._line(said)

    def note(self, text: str) -> None:
        """A line of its own."""
        if self.bar is not None:
            self.bar.console.print(f"tightfit: {text}", markup=False, highlight=False)
        elif self.wanted:
            print(f"tightfit: {text}", file=self.stream, flush=True)

    def _before(self) -> int:
        names = self.names[: self.names.index(self.current)]
        return sum(self.stages[name][1] for name in names)

    def _line(self, more: str) -> None:
        number = self.names.index(self.current) + 1
        self.note(f"{number}/{len(self.names)} {self.stages[self.current][0]}{more}")


def _create_bar(stream: TextIO) -> Any:
    from rich.console import Console
    from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    words = TextColumn("tightfit: {task.description}", markup=False)
    columns = (words, BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    return Bar(*columns, console=Console(file=stream), transient=True, redirect_stdout=False)
