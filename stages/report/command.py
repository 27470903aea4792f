"""`python -m tightfit report`: the page of a model, the index of a run, or a trace for Perfetto."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tightfit.schemas.plan_folders import PlanFolder, find_plan_folders
from tightfit.util.command_line import LineageEntry
from tightfit.util.errors import ArtifactError, ConfigError

if TYPE_CHECKING:
    from tightfit.stages.report.result_files import PlannedPoints


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the stage."""
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--model-dir", type=Path, help="a model's results, to write its page")
    what.add_argument("--index", type=Path, help="all results of a run, to write their index")
    what.add_argument(
        "--failed", type=Path, help="all results of a run, to write what a failed run leaves"
    )
    parser.add_argument(
        "--planned",
        type=Path,
        nargs="*",
        help="the plan.json of each plan that the run was for, with --failed; those of chains and "
        "pipelines, with --index (default: all)",
    )
    parser.add_argument(
        "--points",
        nargs="*",
        help="the plans to show, as STRATEGY/BUDGET, with --model-dir (default: all)",
    )
    parser.add_argument(
        "--done", type=Path, help="a mark to write that the page is done, with --model-dir"
    )
    parser.add_argument(
        "--models", nargs="*", help="the models to show, with --index (default: all)"
    )
    parser.add_argument(
        "--plans-only",
        action="store_true",
        help="show plans without frontiers, with --model-dir, --index or --failed",
    )
    what.add_argument(
        "--chain-plans",
        type=Path,
        nargs="+",
        help="the plan.json of each plan of a chain, to write its page",
    )
    what.add_argument("--pipeline", type=Path, help="what `pipeline` wrote, to write its page")
    what.add_argument("--perfetto", type=Path, help="a schedule.arrow, to write a trace of it")
    what.add_argument(
        "--memory-snapshot",
        type=Path,
        help="a schedule.arrow, to write its memory as a snapshot for pytorch.org/memory_viz",
    )
    parser.add_argument(
        "--graph",
        type=Path,
        nargs="+",
        help="graph.arrow, of several that of the schedule, with --perfetto and --memory-snapshot",
    )
    parser.add_argument(
        "--costs",
        type=Path,
        nargs="+",
        help="costs.arrow of each graph, to show the states of a whole step, with --perfetto",
    )
    parser.add_argument(
        "--timeline",
        type=Path,
        help="memory_timeline.arrow, to show what was measured, with --perfetto and "
        "--memory-snapshot",
    )
    parser.add_argument("--plan", type=Path, help="the folder of the plan, with --pipeline")
    parser.add_argument(
        "--measurement", type=Path, help="the pipeline's measurement.json, with --pipeline"
    )
    parser.add_argument("--trace", type=Path, help="a trace for Perfetto too, with --pipeline")
    parser.add_argument("--out", type=Path, required=True, help="the file to write")


def run(options: argparse.Namespace) -> None:
    """Writes the file; raises ArtifactError when an artifact is damaged."""
    if options.pipeline is not None:
        _write_pipeline_page(options)
    elif options.chain_plans is not None:
        _write_chain_page(options)
    elif options.perfetto is not None:
        _write_trace(options)
    elif options.memory_snapshot is not None:
        _write_memory_snapshot(options)
    elif options.graph is not None:
        raise ConfigError("report needs --graph with --perfetto and --memory-snapshot only")
    elif options.index is not None:
        chains, asked = _planned_chains(options, options.index), _planned_folders(options)
        points, curves = _shown_points(options), not options.plans_only
        _write_index_page(options.index, options.out, curves, points, chains, asked)
    elif options.failed is not None:
        _write_failed_pages(options)
    else:
        _write_model_page(options.model_dir, options.out, not options.plans_only, options.points)
        if options.done is not None:
            _write_done_mark(options.done, options.points or ())


def lineage_entries(options: argparse.Namespace) -> list[LineageEntry]:
    """What `run` made of what."""
    from tightfit.stages.report.load import MODEL_PAGE_FILE, model_result_files

    if options.pipeline is not None:
        from tightfit.schemas.pipeline import PIPELINE_FILE
        from tightfit.schemas.pipeline_pattern import PATTERN_FILE

        known = (options.measurement, options.trace)
        read = [options.pipeline / PIPELINE_FILE, options.plan / "plan.json"]
        pattern = options.plan / PATTERN_FILE
        read += [path for path in (pattern if pattern.exists() else None, known[0]) if path]
        return [LineageEntry([options.out, *(path for path in known[1:] if path)], read)]
    schedule = options.perfetto or options.memory_snapshot
    if schedule is not None:
        from tightfit.schemas.schedule import find_schedule_graph

        paid = _schedule_costs(options) if options.perfetto is not None else None
        more = [path for path in (paid, options.timeline) if path is not None]
        graph = find_schedule_graph(schedule, options.graph)
        return [LineageEntry([options.out], [schedule, graph, *more])]
    if options.chain_plans is not None:
        from tightfit.stages.report.chain_page import chain_page_files

        return [LineageEntry([options.out], chain_page_files(options.chain_plans))]
    curves = not options.plans_only
    if options.model_dir is not None:
        files = model_result_files(options.model_dir, curves, options.points)
        return [LineageEntry([options.out], files)]
    if options.index is not None:
        files = _index_files(options.index, curves, _shown_points(options))
        return [LineageEntry([options.out], files)]
    planned = _planned_points(options)
    pages = [
        LineageEntry(
            [folder / MODEL_PAGE_FILE],
            model_result_files(folder, curves, (planned or {}).get(folder.name)),
        )
        for folder in _failed_models(options)
    ]
    files = _index_files(options.failed, curves, planned)
    return [*pages, LineageEntry([options.out], files)]


def _index_files(folder: Path, curves: bool, points: PlannedPoints | None) -> list[Path]:
    """The artifacts and plans that an index shows."""
    from tightfit.stages.report.chain_results import find_chain_plans
    from tightfit.stages.report.load import run_result_files
    from tightfit.stages.report.plan_readers import plan_row_files

    models = run_result_files(folder, curves, points)
    return [*models, *find_chain_plans(folder), *plan_row_files(folder)]


def _shown_points(options: argparse.Namespace) -> PlannedPoints | None:
    """What the index shows: the plans of the pages of the models that are named."""
    from tightfit.stages.report.result_files import read_shown_points

    return None if options.models is None else read_shown_points(options.index, options.models)


def _write_done_mark(path: Path, points: Sequence[str]) -> None:
    from tightfit.schemas.store import write_bytes

    write_bytes(path, "".join(f"{point}\n" for point in points).encode())


def _write_pipeline_page(options: argparse.Namespace) -> None:
    import json

    from tightfit.schemas.pipeline import PIPELINE_FILE, read_pipeline
    from tightfit.schemas.pipeline_measurement import read_pipeline_measurement
    from tightfit.schemas.pipeline_pattern import PATTERN_FILE, read_pipeline_pattern
    from tightfit.schemas.pipeline_plan import read_pipeline_plan
    from tightfit.schemas.store import write_bytes
    from tightfit.stages.report.pipeline_page import build_pipeline_page, build_pipeline_trace
    from tightfit.stages.report.render import render_pipeline

    if options.plan is None:
        raise ConfigError("report needs --plan, the folder of the plan, with --pipeline")
    pipeline = read_pipeline(options.pipeline / PIPELINE_FILE)
    plan = read_pipeline_plan(options.plan / "plan.json")
    pattern = read_pipeline_pattern(options.plan / PATTERN_FILE) if pipeline.feasible else None
    measured = None
    if options.measurement is not None:
        measured = read_pipeline_measurement(options.measurement)
        ran = [len(row.timeline) for row in measured.ranks]
        if ran != [len(actions) for actions in pipeline.actions]:
            raise ConfigError(f"{options.measurement}: is the measurement of another pipeline")
    page = build_pipeline_page(pipeline, plan, pattern, measured)
    write_bytes(options.out, render_pipeline(page).encode())
    if options.trace is not None:
        document = build_pipeline_trace(pipeline, pattern, measured)
        write_bytes(options.trace, json.dumps(document, separators=(",", ":")).encode())


def _write_chain_page(options: argparse.Namespace) -> None:
    from tightfit.schemas.store import write_bytes
    from tightfit.stages.report.chain_page import build_chain_page
    from tightfit.stages.report.render import render_chain

    write_bytes(options.out, render_chain(build_chain_page(options.chain_plans)).encode())


def _write_model_page(
    folder: Path, path: Path, curves: bool, planned: Sequence[str] | None = None
) -> None:
    from tightfit.schemas.store import write_bytes
    from tightfit.stages.report.load import load_model_results
    from tightfit.stages.report.model_page import build_model_page
    from tightfit.stages.report.render import render_model

    results = load_model_results(folder, planned=planned, curves=curves)
    write_bytes(path, render_model(build_model_page(results)).encode())


def _write_index_page(
    folder: Path,
    path: Path,
    curves: bool,
    planned: PlannedPoints | None = None,
    chains: Sequence[Path] | None = None,
    asked: Sequence[PlanFolder] | None = None,
    strict: bool = True,
) -> None:
    from tightfit.schemas.store import write_bytes
    from tightfit.stages.report.chain_results import chain_index_rows, read_chain_results
    from tightfit.stages.report.index_page import build_run_index
    from tightfit.stages.report.load import load_run_results
    from tightfit.stages.report.plan_readers import read_plan_rows
    from tightfit.stages.report.render import render_index

    further = chain_index_rows(read_chain_results(folder, chains, strict))
    models = load_run_results(folder, planned, curves, strict)
    index = build_run_index(models, read_plan_rows(folder, asked, strict), further)
    write_bytes(path, render_index(index).encode())


def _write_failed_pages(options: argparse.Namespace) -> None:
    """The pages of the models that are not done and the index, without the marks that they are
    done. A model whose files are damaged has none: the index names the file, and the next run makes
    it again."""
    from tightfit.schemas.lineage import remove_with_lineage
    from tightfit.stages.report.load import MODEL_PAGE_FILE
    from tightfit.stages.report.result_files import PAGE_DONE_FILE

    planned = _planned_points(options)
    for folder in _failed_models(options):
        (folder / PAGE_DONE_FILE).unlink(missing_ok=True)
        try:
            points = None if planned is None else planned[folder.name]
            _write_model_page(folder, folder / MODEL_PAGE_FILE, not options.plans_only, points)
        except ArtifactError:
            remove_with_lineage(folder / MODEL_PAGE_FILE)
    (options.failed / "index.done").unlink(missing_ok=True)
    chains, asked = _planned_chains(options, options.failed), _planned_folders(options)
    curves = not options.plans_only
    _write_index_page(options.failed, options.out, curves, planned, chains, asked, strict=False)


def _failed_models(options: argparse.Namespace) -> list[Path]:
    """The folders of models of which something failed, or whose page a run has not come to. A model
    that has plans of no budget alone has no page."""
    from tightfit.stages.report.load import load_run_results
    from tightfit.stages.report.result_files import PAGE_DONE_FILE

    folders, points = [], _planned_points(options)
    unpaged = {folder.model for folder in find_plan_folders(options.failed)}
    for model in load_run_results(options.failed, points, strict=False):
        if model.name in unpaged and not model.plans:
            continue
        folder = options.failed / model.name
        failed = bool(model.error or model.failures or model.damaged)
        failed = failed or any(plan.error for plan in model.plans)
        if failed or not (folder / PAGE_DONE_FILE).exists():
            folders.append(folder)
    return folders


def _planned_chains(options: argparse.Namespace, results: Path) -> list[Path] | None:
    """The plans of chains that a run was for; None if that is not said."""
    if options.planned is None:
        return None
    return [path for path in options.planned if _is_chain_plan(results, path)]


def _is_chain_plan(results: Path, path: Path) -> bool:
    """Whether a plan is one of a chain, and of no model."""
    from tightfit.schemas.config_chains import CHAINS_FOLDER

    return path.is_relative_to(results / CHAINS_FOLDER)


def _planned_points(options: argparse.Namespace) -> dict[str, list[str]] | None:
    """The points that a run was for, as strategy/budget, by model; None if that is not said."""
    points: dict[str, list[str]] = {}
    for path in options.planned or ():
        if _is_chain_plan(options.failed, path) or PlanFolder.of_plan(path) is not None:
            continue
        if len(path.parts) < 4:
            raise ConfigError(f"--planned {path}: expected MODEL/STRATEGY/BUDGET/plan.json")
        model, strategy, budget = path.parts[-4:-1]
        points.setdefault(model, []).append(f"{strategy}/{budget}")
    return points if options.planned else None


def _planned_folders(options: argparse.Namespace) -> list[PlanFolder] | None:
    """The plans of no budget that a run was for; None if that is not said."""
    if options.planned is None:
        return None
    found = [PlanFolder.of_plan(path) for path in options.planned]
    return [folder for folder in found if folder is not None]


def _schedule_costs(options: argparse.Namespace) -> Path | None:
    """The costs of the graph of a schedule, None where none are given. Raises ConfigError where
    there are not as many as graphs."""
    from tightfit.schemas.schedule import find_schedule_graph

    if options.costs is None:
        return None
    if len(options.costs) != len(options.graph):
        raise ConfigError(
            f"report: there are {len(options.graph)} --graph and {len(options.costs)} --costs"
        )
    graph = find_schedule_graph(options.perfetto, options.graph)
    costs: Path = options.costs[options.graph.index(graph)]
    return costs


def _write_trace(options: argparse.Namespace) -> None:
    import json

    from tightfit.schemas.costs import read_costs
    from tightfit.schemas.graph.training_graph import read_graph
    from tightfit.schemas.measurement import read_memory_timeline
    from tightfit.schemas.schedule import (
        find_schedule_graph,
        read_schedule,
        schedule_link,
        schedule_optimizer_plan,
    )
    from tightfit.schemas.store import write_bytes
    from tightfit.stages.report.perfetto import build_trace
    from tightfit.stages.simulate.cyclic_schedule import simulate_any

    if options.graph is None:
        raise ConfigError("report needs --graph with --perfetto")
    graph = read_graph(find_schedule_graph(options.perfetto, options.graph))
    steps = read_schedule(options.perfetto)
    passing: Sequence[tuple[str, float, float]] = ()
    updates = schedule_optimizer_plan(options.perfetto)
    paid = _schedule_costs(options)
    if paid is not None and updates is not None:
        link = schedule_link(options.perfetto)
        costs = read_costs(paid)
        passing = simulate_any(graph, costs, steps, link, updates)[0].passing
    ran = read_memory_timeline(options.timeline) if options.timeline is not None else ()
    document = build_trace(graph, steps, passing, ran)
    write_bytes(options.out, json.dumps(document, separators=(",", ":")).encode())


def _write_memory_snapshot(options: argparse.Namespace) -> None:
    import pickle

    from tightfit.schemas.graph.training_graph import read_graph
    from tightfit.schemas.measurement import read_memory_timeline
    from tightfit.schemas.schedule import find_schedule_graph, read_schedule
    from tightfit.schemas.store import write_bytes
    from tightfit.stages.report.memory_snapshot import build_memory_snapshot

    schedule = options.memory_snapshot
    if options.graph is None:
        raise ConfigError("report needs --graph with --memory-snapshot")
    graph = read_graph(find_schedule_graph(schedule, options.graph))
    ran = read_memory_timeline(options.timeline) if options.timeline is not None else ()
    write_bytes(
        options.out, pickle.dumps(build_memory_snapshot(graph, read_schedule(schedule), ran))
    )
