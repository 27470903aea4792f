"""Says in a user's words what a run will do and why, from what Snakemake says of its jobs."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
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
FOLLOWS_INPUTS = "its inputs are made again"
STAGE_CODE = r"code of (\w+) [0-9a-f]{16}"
OWN_PLANS = "candidates.arrow"
"""Lies beside the plans of a strategy for all budgets, where these are of one that is no baseline.
"""
FORCED = "Forced execution"
REMEASURE_VARIABLE = "TIGHTFIT_REMEASURE"
UNKNOWN_ORIGIN = "no run of this folder is known to have made it"
MEASURING_RULES = ("profile", "profile_updates", "link", "offload_link", "reference")
"""The rules that a run forces that measures again."""
MAX_NAMED_FILES = 8
"""Lost files of a model that are named."""


@dataclass(frozen=True)
class WorkflowJob:
    """A job that Snakemake will run: its rule, wildcards, reason, and log files, and what is said
    of settings of it that changed."""

    rule: str
    wildcards: Mapping[str, str]
    reason: str
    logs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    changed_settings: tuple[str, ...] = ()

    @cached_property
    def lost(self) -> list[str]:
        """The files that are gone or damaged of what it made before, all or some of them."""
        # What a run imports is there once its jobs are known.
        from tightfit.schemas.lost_files import find_missing_files, was_made

        forced = FORCED in self.reason and self.rule not in MEASURING_RULES
        missing = {path: find_missing_files(path) for path in map(Path, self.outputs)}
        return [
            str(file)
            for path, files in missing.items()
            if files and (forced or was_made(path))
            for file in files
        ]

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
        steps = f"{_step_count_prefix(own)}{_format_steps(len(own))}"
        lines.append(f"  {model}, {steps}: {'; '.join(_causes(own))}")
    return lines


def _step_count_prefix(jobs: list[WorkflowJob]) -> str:
    """Whether fewer steps may do: what follows a trace, or a file that was lost, is needed just
    where that changed."""
    traced = (job.rule in TRACE_RULES and "Missing output" not in job.reason for job in jobs)
    again = any(traced) or any(job.lost for job in jobs)
    return "up to " if again else ""


def _format_steps(number: int) -> str:
    return f"{number} step" if number == 1 else f"{number} steps"


def _causes(jobs: list[WorkflowJob]) -> list[str]:
    """Why the jobs of one model run, each cause once."""
    first = [job for job in jobs if not job.follows and _job_causes(job)]
    traced = [job for job in first if job.rule in TRACE_RULES and "Missing output" in job.reason]
    found = [cause for job in traced or first for cause in _job_causes(job)]
    lost = list(dict.fromkeys(file for job in jobs for file in job.lost))
    for word, there in (("lost", False), ("damaged", True)):
        files = [file for file in lost if Path(file).exists() == there]
        found += [f"{word}: {_list_files(files)}"] if files else []
    own_rules = not found or "chain" in jobs[0].wildcards  # a model is new with its trace
    if own_rules and all(map(_is_new, jobs)):
        return ["it is new"]
    return list(dict.fromkeys(found)) or [FOLLOWS_INPUTS]


def _is_new(job: WorkflowJob) -> bool:
    """Whether a job has made nothing before, and was not tried."""
    tried = any(map(has_error, job.logs)) or any(Path(each).exists() for each in job.outputs)
    return "Missing output" in job.reason and not job.lost and not tried


def _job_causes(job: WorkflowJob) -> list[str]:
    """Why one job runs, none if that is told of another one."""
    reason = job.reason
    if "ncomplete output" in reason:
        return ["a run before was interrupted"]
    if job.lost:  # told of all jobs together
        return []
    if "Missing output" in reason:
        return [*filter(None, [_missing_cause(job)])]
    if FORCED in reason:
        again = job.rule in MEASURING_RULES and REMEASURE_VARIABLE in os.environ
        return ["it is to be measured again" if again else UNKNOWN_ORIGIN]
    if job.rule in REPORT_RULES and "Set of input files" in reason:
        return ["a plan is new or was removed"]
    found = _changed_causes(job) if "Params have changed" in reason else []
    if "Updated input" in reason:
        files = reason.partition("Updated input files: ")[2].partition(";")[0]
        found.append(f"newer than what was made of it: {files}")
    if found:
        return found
    if "Set of input files" in reason:
        return [SETTINGS_CHANGED]
    return [f"the rule {job.rule} of the workflow changed"] if "Code has changed" in reason else []


def has_error(log: str) -> bool:
    """Whether a log has an error: that of a step that went well is empty."""
    return Path(log).is_file() and Path(log).stat().st_size > 0


def _list_files(files: list[str]) -> str:
    """The first of them, and how many more there are."""
    more = len(files) - MAX_NAMED_FILES
    return ", ".join(files[:MAX_NAMED_FILES]) + (f" and {more} more" if more > 0 else "")


def _format_budget(job: WorkflowJob) -> str:
    """The budget of a job as it was written, by the name of its folder."""
    return re.sub("pct$", "%", job.wildcards["budget"])


def _missing_cause(job: WorkflowJob) -> str:
    if any(map(has_error, job.logs)):
        return "it failed before and is tried again"
    strategy = job.wildcards.get("strategy", "")
    if job.rule in TRACE_RULES:
        return "it is new"
    if any(Path(output).with_name(OWN_PLANS).exists() for output in job.outputs):
        return f"the plans of {strategy} for all budgets are new"
    if job.rule in ("own_plans", "frontier"):
        return f"the strategy {strategy} is new"
    if job.rule in ("select", "select_kernels", *CHAIN_RULES):
        if job.wildcards["budget"] == NO_BUDGET:
            return f"the strategy {strategy} is new"
        return f"the budget {_format_budget(job)} is new for {strategy}"
    if job.rule == "allocate":
        return f"the pipeline by {job.wildcards['allocator']} is new"
    if job.rule == "optimizer_offload":
        return f"the budget {_format_budget(job)} is new"
    if job.rule in ("compile_search", "model_chain"):
        return ""
    files = job.reason.partition("Missing output files: ")[2].partition(";")[0]
    return f"missing: {files}"


PARAMETER_CAUSES = {
    r"source [0-9a-f]{16}": "its source, or what that imports, was edited",
    r"pipeline on machine [0-9a-f]{16}": "the description of its pipeline's machine was edited",
    r"chain machine [0-9a-f]{16}": "the description of its machine was edited",
    r"chain file [0-9a-f]{16}": "its file was replaced",
    r"(?<!on )(?<!chain )machine [0-9a-f]{16}": (
        "the device is described, or its description was edited"
    ),
    r"--threads": "the number of threads changed, which --cores sets",
}
"""Why a job runs whose new parameters have such a word."""


def _changed_causes(job: WorkflowJob) -> list[str]:
    """From the parameters that were and are: fingerprints say what they are of."""
    new = job.reason.partition("before: ")[2].partition(" now: ")[2]
    found = [f"the code of the stage {stage} changed" for stage in re.findall(STAGE_CODE, new)[:1]]
    found += [cause for word, cause in PARAMETER_CAUSES.items() if re.search(word, new)]
    return found or [*job.changed_settings] or [SETTINGS_CHANGED]
