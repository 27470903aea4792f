"""`summary`: the plans of a run as a table in the terminal."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from tightfit.schemas.config import Config, read_config
from tightfit.schemas.error_logs import (
    latest_error_log,
    model_error_log,
    read_error,
    upstream_error_log,
)
from tightfit.schemas.measurement import STEP_TIMINGS
from tightfit.schemas.plan import Plan, label_budget
from tightfit.schemas.plan_folders import plan_folders
from tightfit.stages.report.chain_results import NOT_RUN, ChainPlanResult, find_chain_plans
from tightfit.stages.report.dynamic_sizes import size_note
from tightfit.stages.report.formatting import (
    RATIO_MARKS,
    format_bytes,
    format_percent,
    format_ratio,
    format_with_resident,
)
from tightfit.stages.report.index_page import format_budget_folder, order_points
from tightfit.stages.report.joint_budget_note import describe_joint_budget
from tightfit.stages.report.load import MODEL_PAGE_FILE, PlanResult, load_readable_results
from tightfit.stages.report.outcomes import DAMAGED, plan_outcome, reason_not_validated
from tightfit.stages.report.plan_readers import read_plan_rows
from tightfit.stages.report.plan_rows import PlanRow
from tightfit.stages.report.summary_tables import (
    GPU_HEADS,
    GPU_TITLE,
    OFFLOAD_HEADS,
    OFFLOAD_TITLE,
    GpuRow,
    OffloadRow,
    build_console,
    build_rich_table,
    format_seconds,
)
from tightfit.util.budget import NO_BUDGET
from tightfit.util.errors import ConfigError
from tightfit.util.processes import is_file_locked

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
    is the status of the plan itself, as it was measured, and `timing` says how its time was."""

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
    timing: str = ""


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
    it, or of which a file is damaged. Returns the exit code: 1 where a file is, and where the
    configuration asks for that (`fail_on`)."""
    if (path := options.configuration) is None and options.results is None:
        path = Path("config.yaml")
    config = read_config(path) if path else None
    folder = options.results or Path(config.results if config else "")
    plan_rows = read_plan_rows(folder, None if config is None else plan_folders(config), False)
    lines: list[SummaryRow] = []
    for name in _model_names(folder, config):
        lines += _summary_rows(folder / name, config)
        lines += [_summarize_plan_row(row) for row in plan_rows if row.folder.model == name]
    lines += _chain_rows(folder, config)
    print_summary(lines, folder)
    failing = () if config is None else config.fail_on
    return int(any(line.status == DAMAGED or line.plan_status in failing for line in lines))


def print_summary(lines: list[SummaryRow], folder: Path) -> None:
    """Prints lines as a table, what they take of a GPU and send to an offload target as others,
    messages and the path of the index below."""
    from rich.table import Table

    console = build_console()
    if not console.is_terminal:
        console = build_console(TABLE_WIDTH)
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
    for timing in sorted({line.timing for line in lines} - {""}):
        note = f"time: {STEP_TIMINGS[timing]}"
        console.print(note, markup=False, highlight=False, soft_wrap=True)
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
    # The graph of a model whose trace was interrupted is lost, and its plans are there.
    found = {path.parent.name for path in folder.glob("*/graph.arrow")}
    return sorted(found | {path.parents[2].name for path in folder.glob("*/*/*/plan.json")})


def _summary_rows(folder: Path, config: Config | None) -> Iterator[SummaryRow]:
    """The lines of one model: the points of the configuration, or whatever was planned."""
    made = any(folder.glob("*/*/plan.json"))
    results = load_readable_results(folder) if made else None
    found, damaged = (results.plans, results.damaged) if results else ([], {})
    plans = {plan.folder: plan for plan in found}
    report = str(folder / MODEL_PAGE_FILE) if (folder / MODEL_PAGE_FILE).exists() else ""
    if config is None:
        for point in order_points(results) if results else ():
            if point in plans:
                yield _plan_summary(folder, plans[point], report)
            elif point in damaged:
                strategy, _, budget = point.partition("/")
                told = format_budget_folder(budget) or _format_budget(NO_BUDGET)
                about = (DAMAGED, damaged[point])
                yield _missing_summary(folder.name, strategy, told, report, about)
        return
    for request in config.requests(folder.name):
        point = f"{request.strategy}/{request.directory}"
        if point in plans:
            line = _plan_summary(folder, plans[point], report)
            joint = describe_joint_budget(folder, config.models[folder.name].joint, plans[point])
            yield replace(line, note=joint) if joint else line
            continue
        about = (DAMAGED, damaged[point]) if point in damaged else _why_missing(folder / point)
        shared = bool(config.models[folder.name].joint) and request.budget != NO_BUDGET
        budget = _format_budget(label_budget(request.budget, shared))
        yield _missing_summary(folder.name, request.strategy, budget, report, about)


def _why_missing(place: Path) -> tuple[str, str]:
    """The status of a plan that is not there, and what is said of that."""
    log = latest_error_log(place) or upstream_error_log(place)
    if is_file_locked(log):
        return RUNNING, ""
    return ("not planned", "") if log is None else ("failed", f"{read_error(log)} (see {log})")


def _missing_summary(
    model: str, strategy: str, budget: str, report: str, about: tuple[str, str]
) -> SummaryRow:
    """The line of a plan that cannot be shown: its status, and why."""
    status, note = about
    state = "warning" if status == RUNNING else "bad"
    return SummaryRow(model, strategy, budget, status, "", "", "", "", report, state, note)


def _chain_rows(folder: Path, config: Config | None) -> Iterator[SummaryRow]:
    """The lines of all chains: the plans of the configuration, or whatever was planned."""
    if config is None:
        places = [path.parent for path in find_chain_plans(folder)]
    else:
        asked = [request for chain in config.chains.values() for request in chain.requests()]
        places = [folder / request.folder for request in asked]
    for place in places:
        yield _chain_summary(ChainPlanResult.of(place, strict=False))


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
        format_seconds(period) if result.ratio is None else format_ratio(result.ratio),
        "" if result.gap is None else format_percent(result.gap),
        str(page) if page.exists() else "",
        "warning" if runs else state,
        note,
        plan_status="" if result.plan is None else result.plan.status,
    )


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
    if not note and not runs and plan.feasible:
        note = size_note(plan, None if validated is None else len(validated.sizes) + 1)
    budget = _format_budget(plan.budget_label)
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
        "" if validated is None or runs else validated.timing,
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
