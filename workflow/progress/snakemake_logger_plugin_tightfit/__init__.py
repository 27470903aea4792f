"""Shows a run of Snakemake in the words of tightfit's rules: one line for each step begun.

A stage tells its own errors in one sentence, so that what Snakemake adds to them (the rule, the
shell command, tracebacks of its own) is left to its log file.
"""

from __future__ import annotations

import logging
import sys

from snakemake_interface_logger_plugins.base import LogHandlerBase
from snakemake_interface_logger_plugins.common import LogEvent


class LogHandler(LogHandlerBase):
    """Writes `[done/total] message` to standard error when a job begins."""

    writes_to_stream = True
    writes_to_file = False
    has_filter = True
    has_formatter = True
    needs_rulegraph = False

    def __post_init__(self) -> None:
        self.done = 0
        self.total = 0

    def emit(self, record: logging.LogRecord) -> None:
        """Prints what a user wants to know of a record, or nothing."""
        line = self.line(record)
        if line:
            print(line, file=sys.stderr, flush=True)

    def line(self, record: logging.LogRecord) -> str:
        """The line for a record, empty where there is nothing to say."""
        event, data = getattr(record, "event", None), record.__dict__
        if event == LogEvent.RUN_INFO:
            self.total = data.get("stats", {}).get("total", 0)
        elif event == LogEvent.PROGRESS:
            self.done, self.total = data["done"], data["total"]
        elif event == LogEvent.JOB_INFO:
            return self._job(data.get("rule_msg"))
        elif event in (None, LogEvent.ERROR):
            return self._other(record)
        return ""

    def _job(self, message: str | None) -> str:
        width = len(str(self.total))
        return f"[{self.done:>{width}}/{self.total}] {message}" if message else ""

    def _other(self, record: logging.LogRecord) -> str:
        text = record.getMessage().strip()
        told = "CalledProcessError" in text  # by the stage itself
        wanted = record.levelno >= logging.WARNING or text.startswith("Nothing to be done")
        return text if wanted and not told else ""
