"""Says in a user's words what a run will do and why, from what Snakemake says of its jobs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

NO_BUDGET = "none"
"""What stands for a budget where a strategy takes none."""
RUN_LABEL = "the run"
"""What stands for a model where a job belongs to none."""

CHAIN_RULES = ("chain", "chain_offload", "chain_pipeline")
"""The rules that plan a chain."""
TRACE_RULES = ("trace", "trace_eager")
"""The rules that trace a model."""
REPORT_RULES = ("report", "chain_report", "index")
"""The rules whose input are plans: others read other files where their settings ask for that."""
SETTINGS_CHANGED = "its settings in the configuration changed"


@dataclass(frozen=True)
class WorkflowJob:
    """A job that Snakemake will run: its rule, wildcards, reason, and log files."""

    rule: str
    wildcards: Mapping[str, str]
    reason: str
    logs: tuple[str, ...] = ()

    @property
    def model(self) -> str:
        """The model or the chain it is for, or the run."""
        chain = self.wildcards.get("chain")
        return f"chains/{chain}" if chain else self.wildcards.get("model", RUN_LABEL)

    @property
    def follows(self) -> bool:
        """Whether it runs just because a job before it does."""
        return "updated by another job" in self.reason


def describe_jobs(jobs: Iterable[WorkflowJob]) -> list[str]:
    """The lines to print, the first with the number of steps, then one a model, by name; none where
    there is nothing to do."""
    todo = [job for job in jobs if job.rule != "all"]
    if not todo:
        return []
    lines = [f"To do: {_step_count_prefix(todo)}{_format_steps(len(todo))}"]
    by_model: dict[str, list[WorkflowJob]] = {}
    for job in todo:
        by_model.setdefault(job.model, []).append(job)
    for model, own in sorted(by_model.items()):
        causes = _causes(own)
        if causes:
            lines.append(
                f"  {model}, {_step_count_prefix(own)}{_format_steps(len(own))}: "
                f"{'; '.join(causes)}"
            )
    return lines


def _step_count_prefix(jobs: list[WorkflowJob]) -> str:
    """Whether fewer steps may do: what follows a trace is needed just where the graph changed."""
    again = any(job.rule in TRACE_RULES and "Missing output" not in job.reason for job in jobs)
    return "up to " if again else ""


def _format_steps(number: int) -> str:
    return f"{number} step" if number == 1 else f"{number} steps"


def _causes(jobs: list[WorkflowJob]) -> list[str]:
    """Why the jobs of one model run, each cause once."""
    first = [job for job in jobs if not job.follows and _cause(job)]
    traced = [job for job in first if job.rule in TRACE_RULES and "Missing output" in job.reason]
    return list(dict.fromkeys(_cause(job) for job in traced or first))


def _cause(job: WorkflowJob) -> str:
    reason = job.reason
    if "ncomplete output" in reason:
        return "a run before was interrupted"
    if "Missing output" in reason:
        return _missing_cause(job)
    if "Forced execution" in reason:
        return "it is to be measured again"
    if job.rule in REPORT_RULES and "Set of input files" in reason:
        return "a plan is new or was removed"
    if "Params have changed" in reason:
        return _changed_cause(reason)
    if "Updated input" in reason:
        files = reason.partition("Updated input files: ")[2].partition(";")[0]
        return f"changed by hand: {files}"
    if "Set of input files" in reason:
        return SETTINGS_CHANGED
    if "Code has changed" in reason:
        return f"the rule {job.rule} of the workflow changed"
    return ""


def _missing_cause(job: WorkflowJob) -> str:
    if any(Path(log).is_file() for log in job.logs):
        return "it failed before and is tried again"
    strategy = job.wildcards.get("strategy", "")
    if job.rule in TRACE_RULES:
        return "it is new"
    if job.rule in ("own_plans", "frontier"):
        return f"the strategy {strategy} is new"
    if job.rule in ("select", "select_kernels", *CHAIN_RULES):
        if job.wildcards["budget"] == NO_BUDGET:
            return f"the strategy {strategy} is new"
        return f"the budget {job.wildcards['budget']} is new for {strategy}"
    if job.rule == "allocate":
        return f"the pipeline by {job.wildcards['allocator']} is new"
    if job.rule == "optimizer_offload":
        return f"the budget {job.wildcards['budget']} is new"
    if job.rule in ("compile_search", "model_chain"):
        return ""
    files = job.reason.partition("Missing output files: ")[2].partition(";")[0]
    return f"missing: {files}"


def _changed_cause(reason: str) -> str:
    """From the parameters that were and are: fingerprints say what they are of."""
    new = reason.partition(" now: ")[2]
    stages = re.findall(r"code of (\w+) [0-9a-f]{16}", new)
    if stages:
        return f"the code of the stage {stages[0]} changed"
    if re.search(r"source [0-9a-f]{16}", new):
        return "its source, or what that imports, was edited"
    if re.search(r"pipeline on machine [0-9a-f]{16}", new):
        return "the description of its pipeline's machine was edited"
    if re.search(r"machine [0-9a-f]{16}", new):
        return "the device is described, or its description was edited"
    if "--threads" in new:
        return "the number of threads changed"
    return SETTINGS_CHANGED
