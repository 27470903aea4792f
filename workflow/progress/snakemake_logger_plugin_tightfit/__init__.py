"""Shows a run of Snakemake in the words of tightfit's rules: one line for each step begun.

A stage tells its own errors in one sentence, so that what Snakemake adds to them (the rule, the
shell command, tracebacks of its own) is left to its log file.
"""
# Snakemake reads the types of the settings' fields: annotations are no strings here.

import json
import logging
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from snakemake_interface_logger_plugins.base import LogHandlerBase
from snakemake_interface_logger_plugins.common import LogEvent
from snakemake_interface_logger_plugins.settings import LogHandlerSettingsBase

from snakemake_logger_plugin_tightfit.changed_settings import find_changed_settings
from snakemake_logger_plugin_tightfit.rerun_reasons import WorkflowJob, describe_jobs, has_error


@dataclass
class LogHandlerSettings(LogHandlerSettingsBase):
    """Options of the plugin."""

    why: bool = field(
        default=False,
        metadata={"help": "Instead of each step, say at the end what is to be done and why."},
    )
    folder: str = field(
        default="",
        metadata={"help": "The folder of the run, which is put ahead of the names of logs."},
    )


_FAILURE_SUMMARIES = ("job did not complete successfully", "because a job execution failed")
"""What Snakemake says at the end where jobs failed, without their names."""
PLAN_READING_RULES = (
    *("generate", "perfetto", "validate", "validate_step"),
    *("split", "generate_pipeline", "validate_pipeline"),
)
"""The rules of jobs that have nothing to do for a plan that is infeasible."""
_INTERRUPT_PREFIX = "Terminating processes on user request"
"""How Snakemake begins what it says of an interrupt. A stage that was interrupted leaves no log."""


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
        self.targets = 0
        self.jobs: list[WorkflowJob] = []
        self.messages: dict[int, str] = {}
        self.failed: dict[int, str] = {}
        self.unlogged: set[int] = set()
        self.interrupted = False
        common = getattr(self, "common_settings", None)
        self.dry = common is not None and common.dryrun
        settings = self.settings
        self.why = isinstance(settings, LogHandlerSettings) and settings.why
        if self.why:
            _skip_descriptions()
        self.folder = settings.folder if isinstance(settings, LogHandlerSettings) else ""

    def close(self) -> None:
        """Says which steps failed and, if asked to, why there are steps to do."""
        failed = [
            said
            for job, said in self.failed.items()
            if not (self.interrupted and job in self.unlogged)
        ]
        lines = [*describe_jobs(self.jobs), *failed]
        if lines:
            print("\n".join(lines), file=sys.stderr, flush=True)
        self.jobs, self.failed = [], {}
        super().close()

    def emit(self, record: logging.LogRecord) -> None:
        """Prints what a user wants to know of a record, or nothing."""
        line = self.line(record)
        if line:
            print(line, file=sys.stderr, flush=True)

    def line(self, record: logging.LogRecord) -> str:
        """The line for a record, empty where there is nothing to say."""
        event, data = getattr(record, "event", None), record.__dict__
        if event == LogEvent.RUN_INFO:
            stats = data.get("stats", {})
            self.targets = stats.get("all", 0)
            self.total = stats.get("total", 0) - self.targets
        elif event == LogEvent.PROGRESS:
            self.done, self.total = data["done"], data["total"] - self.targets
        elif event == LogEvent.JOB_INFO and self.why:
            logs = tuple(map(str, data.get("log") or ()))
            outputs = tuple(map(str, data.get("output") or ()))
            wildcards = dict(data.get("wildcards") or {})
            changed = tuple(data.get("rule_msg") or ())
            self.jobs.append(
                WorkflowJob(data["rule_name"], wildcards, data["reason"], logs, outputs, changed)
            )
        elif event == LogEvent.JOB_INFO:
            message = _without_budget(data)
            self.messages[data.get("jobid", 0)] = message or data.get("rule_name", "")
            # A plan that is there now may be another one when a job of a dry run comes.
            note = "" if self.dry else _infeasible_note(data)
            return self._job(message and f"{message}{note}")
        elif event == LogEvent.JOB_ERROR:
            self.failed[data["jobid"]] = self._failure(data)
        elif event == LogEvent.JOB_FINISHED:
            # One that was tried again, and did it.
            self.failed.pop(data["job_id"], None)
        elif event in (None, LogEvent.ERROR):
            return self._other(record)
        return ""

    def _job(self, message: str | None) -> str:
        width = len(str(self.total))
        return f"[{self.done:>{width}}/{self.total}] {message}" if message else ""

    def _failure(self, data: dict[str, Any]) -> str:
        """Which step failed, and where its log is."""
        logs = [*filter(has_error, map(str, data.get("log") or ()))]
        if not logs:
            self.unlogged.add(data["jobid"])
        why = f"{Path(self.folder, logs[0])} says why" if logs else "it has left no log"
        return f"Failed: {self.messages.get(data['jobid'], data['rule_name'])} ({why})"

    def _other(self, record: logging.LogRecord) -> str:
        text = record.getMessage().strip()
        self.interrupted = self.interrupted or text.startswith(_INTERRUPT_PREFIX)
        # By the stage itself, and at the end by name.
        told = "CalledProcessError" in text or (
            bool(self.failed) and any(some in text for some in _FAILURE_SUMMARIES)
        )
        wanted = record.levelno >= logging.WARNING or text.startswith("Nothing to be done")
        return text if wanted and not told else ""


def _infeasible_note(data: dict[str, Any]) -> str:
    """What is said of a job whose plan is infeasible, "" of others."""
    if data.get("rule_name") not in PLAN_READING_RULES or not data.get("output"):
        return ""
    around = Path(str(data["output"][0])).parents
    plans = (around[0] / "plan.json", around[0] / "plan/plan.json", around[1] / "plan/plan.json")
    plan = next((path for path in plans if path.is_file()), None)
    try:
        status = json.loads(plan.read_bytes())["status"] if plan is not None else ""
    except (ValueError, LookupError, TypeError):  # the job itself says so
        return ""
    return " (infeasible: there is nothing to run)" if status == "infeasible" else ""


def _skip_descriptions() -> None:
    """Has Snakemake hand over jobs with their changed settings as message, and without command:
    these texts take a quarter of the dry run of many jobs. No rule has an environment of conda,
    which Snakemake would look for by the parameters of each job."""
    from snakemake.jobs import Job

    for name in ("shellcmd", "conda_env_spec"):
        setattr(Job, name, None)
    Job.message = property(find_changed_settings)
    Job.check_protected_output = _allow_output


async def _allow_output(_: object) -> None:
    """A run that only says what is to be done may be told of results that are read-only."""


def _without_budget(data: dict[str, Any]) -> str:
    """The message of a job, which names no budget where its strategy takes none."""
    message, wildcards = data.get("rule_msg") or "", data.get("wildcards") or {}
    if wildcards.get("budget") != "none":
        return message
    strategy = wildcards.get("strategy", "")
    return message.replace(f"{strategy} for none", strategy).replace(f"{strategy} none", strategy)
