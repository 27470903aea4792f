"""`summary`: the plans of a run as a table in the terminal."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from tightfit.schemas.config import Config, read_config
from tightfit.schemas.error_logs import (
    latest_error_log,
    model_error_log,
    read_error,
    upstream_error_log,
)
from tightfit.schemas.measurement import Measurement
from tightfit.schemas.plan import GpuMemory, Plan
from tightfit.schemas.plan_folders import plan_folders
from tightfit.stages.report.chain_results import NOT_RUN, ChainPlanResult, find_chain_plans
from tightfit.stages.report.formatting import (
    RATIO_MARKS,
    format_bytes,
    format_duration,
    format_percent,
    format_ratio,
    format_with_resident,
)
from tightfit.stages.report.joint_budget_note import describe_joint_budget
from tightfit.stages.report.load import (
    MODEL_PAGE_FILE,
    ModelResults,
    PlanResult,
    load_model_results,
)
from tightfit.stages.report.outcomes import plan_outcome, reason_not_validated
from tightfit.stages.report.plan_readers import read_plan_rows
from tightfit.stages.report.plan_rows import PlanRow
from tightfit.util.budget import NO_BUDGET
from tightfit.util.errors import ConfigError
from tightfit.util.processes import is_file_locked

if TYPE_CHECKING:
    from rich.table import Table


GPU_TITLE = "Of the GPU in all, with parameters and inputs"
GPU_HEADS = ("requested", "allocated", "reserved", "on new inputs", "ahead", "context")
OFFLOAD_TITLE = "Transfers to an offload target, predicted and measured"
OFFLOAD_HEADS = (
    "in the offload target",
    "measured",
    "step",
    "measured",
    "of it waiting",
    "measured",
)


class SummaryTableRow(Protocol):
    """One plan in such a table."""

    @property
    def place(self) -> tuple[str, str, str]:
        """Its model, strategy and budget."""

    def cells(self) -> list[str]:
        """What stands behind these, below the table's heads."""


def build_rich_table(title: str, heads: Sequence[str], rows: Sequence[SummaryTableRow]) -> Table:
    """The table of some plans."""
    from rich.table import Table

    table = Table(header_style="bold", title=title)
    for name in ("model", "strategy"):
        table.add_column(name, overflow="fold")
    for name in ("budget", *heads):
        table.add_column(name, justify="right", overflow="fold")
    for row in rows:
        table.add_row(*row.place, *row.cells())
    return table


@dataclass(frozen=True)
class GpuRow:
    """What one plan takes of a GPU, and what was measured of it; budgets bound what is reserved on
    new inputs."""

    place: tuple[str, str, str]
    predicted: GpuMemory
    found: Measurement | None

    def cells(self) -> list[str]:
        """The cells below `GPU_HEADS`: what was foretold and, where it was measured, found."""
        gpu, found = self.predicted, self.found
        allocated = None if found is None else found.allocated_peak
        reserved = None if found is None else found.reserved_peak
        context = None if found is None else found.cuda_context
        return [
            format_bytes(gpu.requested),
            _predicted_and_measured(gpu.allocated, allocated),
            _predicted_and_measured(gpu.reserved, reserved),
            format_bytes(gpu.steady_reserved),
            format_bytes(gpu.arena) if gpu.arena else "",
            "not measured" if context is None else format_bytes(context),
        ]


@dataclass(frozen=True)
class OffloadRow:
    """One plan with transfers, and what was measured of it."""

    place: tuple[str, str, str]
    plan: Plan
    found: Measurement | None

    def cells(self) -> list[str]:
        """The cells below `OFFLOAD_HEADS`, each figure as predicted and as measured."""
        moved, found = self.plan.transfers, self.found
        there = None if moved is None else moved.host_peak
        if found is not None and found.predicted_offload_peak is not None:
            there = found.predicted_offload_peak  # of a whole step with what updates pass through
        waited = None if moved is None else moved.wait_seconds
        return [
            "" if there is None else format_bytes(there),
            "" if found is None or found.offload_peak is None else format_bytes(found.offload_peak),
            _format_seconds(self.plan.time),
            _format_seconds(None if found is None else found.measured_time),
            _format_seconds(waited),
            _format_seconds(None if found is None else found.wait_seconds),
        ]


def _predicted_and_measured(foretold: int, measured: int | None) -> str:
    return (
        format_bytes(foretold)
        if measured is None
        else f"{format_bytes(foretold)}, measured {format_bytes(measured)}"
    )


def _format_seconds(seconds: float | None) -> str:
    return "" if seconds is None else format_duration(seconds)


TABLE_WIDTH = 240
"""The most columns of the table where the output is no terminal: no path is cut into two."""

RUNNING = "running"
"""What is told of a plan that a stage works on, or on what it waits for."""

STATE_COLORS = {"good": "green", "warning": "yellow", "bad": "red"}


@dataclass(frozen=True)
class SummaryRow:
    """One line of the table, as text; `gap` is that of the plan to its bound, `state` is "good",
    "warning" or "bad", `note` a message that belongs below the table. `kernels` are told where a
    model's are fused, `microbatches` of a whole step where any step has several, and `plan_status`
    is the status of the plan itself, as it was measured."""

    model: str
    strategy: str
    budget: str
    status: str
    predicted: str
    measured: str
    time: str
    gap: str
    report: str
    state: str
    note: str = ""
    gpu: GpuRow | None = None
    slow: OffloadRow | None = None
    kernels: str = ""
    plan_status: str = ""
    microbatches: str = ""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the stage."""
    parser.add_argument("results", type=Path, nargs="?", help="the results of a run")
    parser.add_argument(
        "--configuration",
        type=Path,
        help="tell of all plans of this configuration, "
        "and no others (default: config.yaml if no results are named)",
    )


def run(options: argparse.Namespace) -> int:
    """Prints the table and, below it, a message for each plan that failed, with the log that has
    it. Returns the exit code: 1 where the configuration asks for that (`fail_on`)."""
    if (path := options.configuration) is None and options.results is None:
        path = Path("config.yaml")
    config = read_config(path) if path else None
    folder = options.results or Path(config.results if config else "")
    plan_rows = read_plan_rows(folder, None if config is None else plan_folders(config))
    lines: list[SummaryRow] = []
    for name in _model_names(folder, config):
        lines += _summary_rows(folder / name, config)
        lines += [_summarize_plan_row(row) for row in plan_rows if row.folder.model == name]
    lines += _chain_rows(folder, config)
    print_summary(lines, folder)
    return int(config is not None and any(line.plan_status in config.fail_on for line in lines))


def print_summary(lines: list[SummaryRow], folder: Path) -> None:
    """Prints lines as a table, what they take of a GPU and send to an offload target as others,
    messages and the path of the index below."""
    from rich.console import Console
    from rich.table import Table

    console = Console()
    if not console.is_terminal:
        console = Console(width=TABLE_WIDTH)
    if not lines:
        console.print(f"{folder} has no plans yet", markup=False, highlight=False, soft_wrap=True)
        return
    table = Table(header_style="bold", title="Plans, by peak of the step without parameters")
    told = [("kernels", "left")] if any(line.kernels for line in lines) else []
    several = any(line.microbatches not in ("", "1") for line in lines)
    for name, justify in [
        ("model", "left"),
        ("strategy", "left"),
        ("budget", "right"),
        *told,
        ("status", "left"),
        ("predicted peak", "right"),
        ("measured peak", "right"),
        ("time", "right"),
        ("gap", "right"),
        *([("microbatches", "right")] if several else []),
        ("report", "left"),
    ]:
        table.add_column(name, justify=justify, overflow="fold")  # type: ignore[arg-type]
    before, shown = None, set[str]()
    for line in lines:
        if before not in (None, line.model):
            table.add_section()
        first = line.model != before
        table.add_row(
            line.model if first else "",
            line.strategy,
            line.budget,
            *([line.kernels] if told else []),
            f"[{STATE_COLORS[line.state]}]{line.status}[/]",
            line.predicted,
            line.measured,
            line.time,
            line.gap,
            *([line.microbatches] if several else []),
            line.report if line.report not in shown else "",
        )
        before = line.model
        shown.add(line.report)
    console.print(table)
    for mark, note in RATIO_MARKS.items():
        if any(line.time.endswith(mark) for line in lines):
            console.print(f"{mark}: {note}", markup=False, highlight=False, soft_wrap=True)
    on_gpu = [line.gpu for line in lines if line.gpu is not None]
    if on_gpu:
        console.print(build_rich_table(GPU_TITLE, GPU_HEADS, on_gpu))
    sending = [line.slow for line in lines if line.slow is not None]
    if sending:
        console.print(build_rich_table(OFFLOAD_TITLE, OFFLOAD_HEADS, sending))
    for message, places in _group_notes(lines).items():
        console.print(
            f"{', '.join(places)}: {message}", markup=False, highlight=False, soft_wrap=True
        )
    if (folder / "index.html").exists():
        console.print(f"All reports: {folder / 'index.html'}", markup=False, highlight=False)


def _group_notes(lines: list[SummaryRow]) -> dict[str, list[str]]:
    """The plans that each message is about; the model alone where it is about all of them."""
    notes: dict[str, list[SummaryRow]] = {}
    for line in lines:
        if line.note:
            notes.setdefault(line.note, []).append(line)
    places = {}
    for message, about in notes.items():
        model = about[0].model
        if len(about) > 1 and about == [line for line in lines if line.model == model]:
            places[message] = [model]
        else:
            places[message] = [" ".join([line.model, line.strategy, line.budget]) for line in about]
    return places


def _model_names(folder: Path, config: Config | None) -> list[str]:
    if config is not None:
        return list(config.models)
    if not folder.is_dir():
        raise ConfigError(f"{folder}: there is no such folder of results")
    return sorted(path.parent.name for path in folder.glob("*/graph.arrow"))


def _summary_rows(folder: Path, config: Config | None) -> Iterator[SummaryRow]:
    """The lines of one model: the points of the configuration, or whatever was planned."""
    results = _load_results(folder)
    plans = {plan.folder: plan for plan in results.plans} if results else {}
    report = str(folder / MODEL_PAGE_FILE) if (folder / MODEL_PAGE_FILE).exists() else ""
    if config is None:
        for plan in plans.values():
            yield _plan_summary(folder, plan, report)
        return
    for request in config.requests(folder.name):
        plan_here = plans.get(f"{request.strategy}/{request.directory}")
        if plan_here is not None:
            line = _plan_summary(folder, plan_here, report)
            joint = describe_joint_budget(folder, config.models[folder.name].joint, plan_here)
            yield replace(line, note=joint) if joint else line
        else:
            place = folder / request.strategy / request.directory
            log = latest_error_log(place) or upstream_error_log(place)
            budget, runs = _format_budget(request.budget), is_file_locked(log)
            yield SummaryRow(
                folder.name,
                request.strategy,
                budget,
                RUNNING if runs else "not planned" if log is None else "failed",
                "",
                "",
                "",
                "",
                report,
                "warning" if runs else "bad",
                "" if log is None or runs else f"{read_error(log)} (see {log})",
            )


def _chain_rows(folder: Path, config: Config | None) -> Iterator[SummaryRow]:
    """The lines of all chains: the plans of the configuration, or whatever was planned."""
    if config is None:
        places = [path.parent for path in find_chain_plans(folder)]
    else:
        asked = [request for chain in config.chains.values() for request in chain.requests()]
        places = [folder / request.folder for request in asked]
    for result in map(ChainPlanResult.of, places):
        yield _chain_summary(result)


def _chain_summary(result: ChainPlanResult) -> SummaryRow:
    page = result.place.parents[1] / MODEL_PAGE_FILE
    (state, word), log = result.outcome, latest_error_log(result.place)
    runs, period = is_file_locked(log), result.period
    note = NOT_RUN if state != "bad" else result.message
    if word == "not planned" or runs:
        note = ""
    elif log is not None:
        note += f" (see {log})"
    return SummaryRow(
        result.chain,
        result.strategy,
        result.budget or _format_budget(NO_BUDGET),
        RUNNING if runs else word,
        "" if result.peak is None else format_bytes(result.peak),
        "",
        _format_seconds(period) if result.ratio is None else format_ratio(result.ratio),
        "" if result.gap is None else format_percent(result.gap),
        str(page) if page.exists() else "",
        "warning" if runs else state,
        note,
        plan_status="" if result.plan is None else result.plan.status,
    )


def _load_results(folder: Path) -> ModelResults | None:
    return load_model_results(folder, whole=False) if list(folder.glob("*/*/plan.json")) else None


def _plan_summary(folder: Path, result: PlanResult, report: str) -> SummaryRow:
    model, place = folder.name, folder / result.folder
    plan, found, validated = result.plan, plan_outcome(result), result.measurement
    measured = validated.measured_peak if validated else None
    log = None
    if result.error:
        log = latest_error_log(place) or upstream_error_log(place) or model_error_log(place)
    note, runs = found.message if found.state == "bad" else "", is_file_locked(log)
    if runs:
        note = ""
    elif result.error:
        note += f" (see {log})"
    note = note or (reason_not_validated(result) if plan.feasible and not runs else "")
    if not note and validated is not None and measured is not None and not validated.bits_equal:
        note = validated.message
    budget = _format_budget(plan.budget)
    timed = found.measured or reason_not_validated(result)
    named = (model, plan.strategy, budget)
    gpu = None
    if plan.gpu is not None and plan.feasible:
        gpu = GpuRow(named, plan.gpu, validated)
    slow = None
    if plan.transfers is not None and plan.feasible:
        slow = OffloadRow(named, plan, validated)
    return SummaryRow(
        model,
        plan.strategy,
        budget,
        RUNNING if runs else found.word,
        "" if plan.peak is None else format_bytes(plan.peak),
        format_with_resident(measured, validated.resident_peak if validated else None),
        format_ratio(found.ratio, found.scattered) if found.ratio is not None and timed else "",
        format_percent(plan.gap) if plan.feasible and plan.gap is not None else "",
        report,
        "warning" if runs else found.state,
        note,
        gpu,
        slow,
        _kernel_kind(plan),
        plan.status if validated is None else validated.status,
        str(plan.microbatches or ""),
    )


def _summarize_plan_row(row: PlanRow) -> SummaryRow:
    """The line of a plan that is of no budget."""
    found, runs = row.outcome, is_file_locked(row.log)
    note = found.message if found.state == "bad" else ""
    if row.log is not None:
        note += f" (see {row.log})"
    return SummaryRow(
        row.folder.model,
        row.folder.strategy,
        row.target or _format_budget(NO_BUDGET),
        RUNNING if runs else found.word,
        "" if row.predicted is None else format_bytes(row.predicted),
        format_bytes(found.peak) if found.measured and found.peak is not None else "",
        "" if found.ratio is None else format_ratio(found.ratio, as_planned=found.as_planned),
        "" if row.gap is None else format_percent(row.gap),
        "" if row.page is None else str(row.page),
        "warning" if runs else found.state,
        "" if runs or found.word == "not planned" else note,
        plan_status=row.status,
    )


def _kernel_kind(plan: Plan) -> str:
    """The kernels of a plan where there are several to choose from, else ""."""
    return plan.kernels or "" if plan.kernels == "fused" or plan.competing_plan is not None else ""


def _format_budget(written: str) -> str:
    return "-" if written == NO_BUDGET else written
