"""The logs of stages that failed: which one says why something is not there."""

from __future__ import annotations

from collections.abc import Container, Iterable
from pathlib import Path

from tightfit.schemas.config import EAGER_FOLDER
from tightfit.schemas.optimizer_plan import SAMPLE_FOLDER
from tightfit.util.processes import is_file_locked
from tightfit.util.strategies import STRATEGIES

ERROR_LOGS = "logs/*.txt"
"""Beside what a stage makes: its error, one file a stage, empty or absent where it went well."""
MODEL_STAGES = ("trace", "fuse", "profile", "offload_link", "partition", "solve")
"""The stages of a model that its plans are made from."""
STRATEGY_STAGES = ("hierarchy", "solve_linked")
"""Those that some strategies alone wait for."""


def model_error_log(folder: Path) -> Path | None:
    """The log with the error of the model's own step, which the validation of the point in a folder
    waits for; None where that went well."""
    return latest_error_log(folder.parent.parent, ("reference",))


def upstream_error(folder: Path) -> str:
    """The error of a stage that the point in a folder waits for; see `upstream_error_log`."""
    return read_error(upstream_error_log(folder))


def upstream_error_log(folder: Path) -> Path | None:
    """The log with the error of a stage that the point in a folder waits for: its strategy's or
    its model's, also with eager's kernels where fused ones are compared with these, or that of the
    link; None where all went well."""
    model, strategy = folder.parent.parent, folder.parent.name
    about, beside = STRATEGIES.get(strategy), model / EAGER_FOLDER
    plans = (_frontier_name(strategy),)
    stages = [*MODEL_STAGES]
    if about is not None:
        taken = zip(STRATEGY_STAGES, (about.clusters, about.uses_link_options), strict=True)
        stages += [name for name, takes in taken if takes]
    return (
        latest_error_log(folder.parent, plans)
        or latest_error_log(model, stages)
        or latest_error_log(beside / strategy, plans)
        or latest_error_log(beside, stages)
        or _sample_error_log(model)
        or (_link_error_log(folder.parent) if about is not None and about.links else None)
    )


def _sample_error_log(model: Path) -> Path | None:
    """The log with the error of a further sample of a whole step."""
    logs = (latest_error_log(sample, MODEL_STAGES) for sample in model.glob(f"{SAMPLE_FOLDER}*"))
    return next(filter(None, logs), None)


def _frontier_name(strategy: str) -> str:
    """The file, and the log, of the plans that those for a budget are chosen from."""
    about = STRATEGIES.get(strategy)
    return "candidates" if about is not None and not about.baseline else "frontier"


def _link_error_log(strategy: Path) -> Path | None:
    """The log of the link that a strategy takes, where measuring it failed since the strategy's
    plans were made, if they were."""
    results = strategy.parent.parent
    log, made = (
        latest_error_log(results, {path.stem for path in results.glob("logs/link_*.txt")}),
        strategy / f"{_frontier_name(strategy.name)}.arrow",
    )
    if log is None or not made.exists():
        return log
    return log if log.stat().st_mtime_ns > made.stat().st_mtime_ns else None


def latest_error(folder: Path) -> str:
    """The latest error of a stage that worked in a folder, "" where all went well."""
    return read_error(latest_error_log(folder))


def latest_error_log(
    folder: Path, stages: Container[str] | None = None, without: Container[str] = ()
) -> Path | None:
    """The log with the latest error of a stage that worked in a folder, of those named only, and
    `without` others; None where all went well."""
    logs = [path for path in folder.glob(ERROR_LOGS) if stages is None or path.stem in stages]
    told = [path for path in logs if path.stem not in without and path.stat().st_size]
    return max(told, key=lambda path: (path.stat().st_mtime_ns, path.name), default=None)


def read_error(log: Path | None) -> str:
    """The error that a log has, without the details below a blank line; "" of none."""
    text = "" if log is None else log.read_text(encoding="utf-8", errors="replace")
    return text.strip().partition("\n\n")[0]


def failed_step_logs(files: Iterable[Path]) -> list[Path]:
    """Of files, the logs of steps that failed: those that have an error and that no running step
    keeps locked."""
    logs = [path for path in files if path.match(ERROR_LOGS)]
    return [log for log in logs if read_error(log) and not is_file_locked(log)]
