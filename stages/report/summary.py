"""`summary`: the plans of a run as a table in the terminal."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tightfit.schemas.budget import NO_BUDGET
from tightfit.schemas.config import Config, read_config
from tightfit.schemas.errors import ConfigError
from tightfit.schemas.plan import Plan
from tightfit.schemas.running import is_held
from tightfit.stages.report.load import (
    PAGE,
    ModelResults,
    PlanResult,
    load_model,
    log_before,
    log_of,
    log_of_model,
    sentence_in,
)
from tightfit.stages.report.tables import (
    GPU_HEADS,
    GPU_TITLE,
    SLOW_HEADS,
    SLOW_TITLE,
    GpuRow,
    SlowRow,
    table_of,
)
from tightfit.stages.report.verdicts import outcome, unvalidated
from tightfit.stages.report.words import percent, ratio, size

WIDTH = 140
"""Columns of the table where the output is no terminal."""

UNSURE = (
    "?: a quarter of the measured runs takes half again as long as another quarter, or other work "
    "took a fifth of their time: measure again while nothing else runs, or with more pairs"
)

RUNNING = "running"
"""What is told of a plan that a stage works on, or on what it waits for."""

COLOURS = {"good": "green", "warning": "yellow", "bad": "red"}


@dataclass(frozen=True)
class Line:
    """One line of the table, as text; `gap` is that of the plan to its bound, `state` is "good",
    "warning" or "bad", `note` a sentence that belongs below the table. `kernels` are told where a
    model's are fused, and `judged` is the verdict of the plan itself, as it was measured."""

    model: str
    strategy: str
    budget: str
    verdict: str
    predicted: str
    measured: str
    time: str
    gap: str
    report: str
    state: str
    note: str = ""
    gpu: GpuRow | None = None
    slow: SlowRow | None = None
    kernels: str = ""
    judged: str = ""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the stage."""
    parser.add_argument("results", type=Path, nargs="?", help="the results of a run")
    parser.add_argument(
        "--configuration", type=Path, help="tell of all plans of this configuration, and no others"
    )


def run(options: argparse.Namespace) -> int:
    """Prints the table and, below it, a sentence for each plan that failed, with the log that has
    it. Returns the exit code: 1 where the configuration asks for that (`fail_on`)."""
    config = read_config(options.configuration) if options.configuration else None
    if options.results is None and config is None:
        raise ConfigError("summary needs a folder of results or --configuration")
    folder = options.results or Path(config.results if config else "")
    lines = [line for name in _models(folder, config) for line in _lines(folder / name, config)]
    show(lines, folder)
    return int(config is not None and any(line.judged in config.fail_on for line in lines))


def show(lines: list[Line], folder: Path) -> None:
    """Prints lines as a table, what they take of a GPU and send to another memory as others,
    sentences and the path of the index below."""
    from rich.console import Console
    from rich.table import Table

    console = Console()
    if not console.is_terminal:
        console = Console(width=WIDTH)
    if not lines:
        console.print(f"{folder} has no plans yet", markup=False, highlight=False, soft_wrap=True)
        return
    table = Table(header_style="bold", title="Plans, by peak of the step without parameters")
    told = [("kernels", "left")] if any(line.kernels for line in lines) else []
    for name, justify in [
        ("model", "left"),
        ("strategy", "left"),
        ("budget", "right"),
        *told,
        ("verdict", "left"),
        ("predicted peak", "right"),
        ("measured peak", "right"),
        ("time", "right"),
        ("gap", "right"),
        ("report", "left"),
    ]:
        table.add_column(name, justify=justify, overflow="fold")  # type: ignore[arg-type]
    before = None
    for line in lines:
        if before not in (None, line.model):
            table.add_section()
        first = line.model != before
        table.add_row(
            line.model if first else "",
            line.strategy,
            line.budget,
            *([line.kernels] if told else []),
            f"[{COLOURS[line.state]}]{line.verdict}[/]",
            line.predicted,
            line.measured,
            line.time,
            line.gap,
            line.report if first else "",
        )
        before = line.model
    console.print(table)
    if any(line.time.endswith("?") for line in lines):
        console.print(UNSURE, markup=False, highlight=False, soft_wrap=True)
    on_gpu = [line.gpu for line in lines if line.gpu is not None]
    if on_gpu:
        console.print(table_of(GPU_TITLE, GPU_HEADS, on_gpu))
    sending = [line.slow for line in lines if line.slow is not None]
    if sending:
        console.print(table_of(SLOW_TITLE, SLOW_HEADS, sending))
    for sentence, places in _notes(lines).items():
        console.print(
            f"{', '.join(places)}: {sentence}", markup=False, highlight=False, soft_wrap=True
        )
    if (folder / "index.html").exists():
        console.print(f"All reports: {folder / 'index.html'}", markup=False, highlight=False)


def _notes(lines: list[Line]) -> dict[str, list[str]]:
    """The plans that each sentence is about; the model alone where it is about all of them."""
    notes: dict[str, list[Line]] = {}
    for line in lines:
        if line.note:
            notes.setdefault(line.note, []).append(line)
    places = {}
    for sentence, about in notes.items():
        model = about[0].model
        if len(about) > 1 and about == [line for line in lines if line.model == model]:
            places[sentence] = [model]
        else:
            places[sentence] = [
                " ".join([line.model, line.strategy, line.budget]) for line in about
            ]
    return places


def _models(folder: Path, config: Config | None) -> list[str]:
    if config is not None:
        return list(config.models)
    if not folder.is_dir():
        raise ConfigError(f"{folder}: there is no such folder of results")
    return sorted(path.parent.name for path in folder.glob("*/graph.arrow"))


def _lines(folder: Path, config: Config | None) -> Iterator[Line]:
    """The lines of one model: the points of the configuration, or whatever was planned."""
    results = _load(folder)
    plans = {plan.folder: plan for plan in results.plans} if results else {}
    report = str(folder / PAGE) if (folder / PAGE).exists() else ""
    if config is None:
        for plan in plans.values():
            yield _line(folder, plan, report)
        return
    for request in config.requests(folder.name):
        plan_here = plans.get(f"{request.strategy}/{request.directory}")
        if plan_here is not None:
            yield _line(folder, plan_here, report)
        else:
            place = folder / request.strategy / request.directory
            log = log_of(place) or log_before(place)
            budget, runs = _budget(request.budget), is_held(log)
            yield Line(
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
                "" if log is None or runs else f"{sentence_in(log)} (see {log})",
            )


def _load(folder: Path) -> ModelResults | None:
    return load_model(folder, whole=False) if list(folder.glob("*/*/plan.json")) else None


def _line(folder: Path, result: PlanResult, report: str) -> Line:
    model, place = folder.name, folder / result.folder
    plan, found, validated = result.plan, outcome(result), result.measurement
    measured = validated.measured_peak if validated else None
    log = None
    if result.error:
        log = log_of(place) or log_before(place) or log_of_model(place)
    note, runs = found.sentence if found.state == "bad" else "", is_held(log)
    if runs:
        note = ""
    elif result.error:
        note += f" (see {log})"
    note = note or (unvalidated(result) if plan.feasible and not runs else "")
    if not note and validated is not None and measured is not None and not validated.bits_equal:
        note = validated.sentence
    budget = _budget(plan.budget)
    timed = found.measured or unvalidated(result)
    named = (model, plan.strategy, budget)
    gpu = None
    if plan.gpu is not None and plan.feasible:
        gpu = GpuRow(named, plan.gpu, validated)
    slow = None
    if plan.transfers is not None and plan.feasible:
        slow = SlowRow(named, plan, validated)
    return Line(
        model,
        plan.strategy,
        budget,
        RUNNING if runs else found.word,
        "" if plan.peak is None else size(plan.peak),
        "" if measured is None else size(measured),
        ratio(found.ratio, found.scattered) if found.ratio is not None and timed else "",
        percent(plan.gap) if plan.feasible and plan.gap is not None else "",
        report,
        "warning" if runs else found.state,
        note,
        gpu,
        slow,
        _kernels(plan),
        plan.verdict if validated is None else validated.verdict,
    )


def _kernels(plan: Plan) -> str:
    """The kernels of a plan where there are several to choose from, else ""."""
    return plan.kernels or "" if plan.kernels == "fused" or plan.rival is not None else ""


def _budget(written: str) -> str:
    return "-" if written == NO_BUDGET else written
