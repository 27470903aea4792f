"""`python -m tightfit report`: the page of a model, the index of a run, or a trace for Perfetto."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path

from tightfit.util.command_line import LineageEntry
from tightfit.util.errors import ArtifactError, ConfigError

PATTERN_FILE = "pattern.arrow"
PAGE_DONE_FILE = "report.done"
"""The mark of a model whose page is done."""


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
        default=[],
        help="the plan.json of each plan that the run was for, with --failed",
    )
    parser.add_argument(
        "--plans-only",
        action="store_true",
        help="show plans without frontiers, with --model-dir, --index or --failed",
    )
    what.add_argument("--pipeline", type=Path, help="what `pipeline` wrote, to write its page")
    what.add_argument("--perfetto", type=Path, help="a schedule.arrow, to write a trace of it")
    parser.add_argument(
        "--graph",
        type=Path,
        nargs="+",
        help="graph.arrow, of several that of the schedule, with --perfetto",
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
        help="memory_timeline.arrow, to show what was measured, with --perfetto",
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
    elif options.perfetto is not None:
        _write_trace(options)
    elif options.graph is not None:
        raise ConfigError("report needs --graph with --perfetto only")
    elif options.index is not None:
        _write_index_page(options.index, options.out, not options.plans_only)
    elif options.failed is not None:
        _write_failed_pages(options)
    else:
        _write_model_page(options.model_dir, options.out, not options.plans_only)


def lineage_entries(options: argparse.Namespace) -> list[LineageEntry]:
    """What `run` made of what."""
    from tightfit.stages.report.load import MODEL_PAGE_FILE, model_result_files, run_result_files

    if options.pipeline is not None:
        from tightfit.schemas.pipeline import PIPELINE_FILE

        known = (options.measurement, options.trace)
        read = [
            options.pipeline / PIPELINE_FILE,
            options.plan / "plan.json",
            options.plan / PATTERN_FILE,
        ]
        read += [path for path in known[:1] if path]
        return [LineageEntry([options.out, *(path for path in known[1:] if path)], read)]
    if options.perfetto is not None:
        from tightfit.schemas.schedule import find_schedule_graph

        graph = find_schedule_graph(options.perfetto, options.graph)
        more = [path for path in (_schedule_costs(options), options.timeline) if path is not None]
        return [LineageEntry([options.out], [options.perfetto, graph, *more])]
    curves = not options.plans_only
    if options.model_dir is not None:
        return [LineageEntry([options.out], model_result_files(options.model_dir, curves))]
    if options.index is not None:
        return [LineageEntry([options.out], run_result_files(options.index, curves))]
    failed = _failed_models(options)
    pages = [
        LineageEntry([folder / MODEL_PAGE_FILE], model_result_files(folder, curves))
        for folder in failed
    ]
    return [*pages, LineageEntry([options.out], run_result_files(options.failed, curves))]


def _write_pipeline_page(options: argparse.Namespace) -> None:
    import json

    from tightfit.schemas.pipeline import PIPELINE_FILE, read_pipeline
    from tightfit.schemas.pipeline_measurement import read_pipeline_measurement
    from tightfit.schemas.pipeline_pattern import read_pipeline_pattern
    from tightfit.schemas.pipeline_plan import read_pipeline_plan
    from tightfit.schemas.store import write_bytes
    from tightfit.stages.report.pipeline_page import build_pipeline_page, build_pipeline_trace
    from tightfit.stages.report.render import render_pipeline

    if options.plan is None:
        raise ConfigError("report needs --plan, the folder of the plan, with --pipeline")
    pipeline = read_pipeline(options.pipeline / PIPELINE_FILE)
    plan = read_pipeline_plan(options.plan / "plan.json")
    pattern = read_pipeline_pattern(options.plan / PATTERN_FILE)
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


def _write_model_page(folder: Path, path: Path, curves: bool, planned: Sequence[str] = ()) -> None:
    from tightfit.schemas.store import write_bytes
    from tightfit.stages.report.load import load_model_results
    from tightfit.stages.report.model_page import build_model_page
    from tightfit.stages.report.render import render_model

    results = load_model_results(folder, planned=planned, curves=curves)
    write_bytes(path, render_model(build_model_page(results)).encode())


def _write_index_page(
    folder: Path, path: Path, curves: bool, planned: Mapping[str, Sequence[str]] | None = None
) -> None:
    from tightfit.schemas.store import write_bytes
    from tightfit.stages.report.index_page import build_run_index
    from tightfit.stages.report.load import load_run_results
    from tightfit.stages.report.render import render_index

    write_bytes(
        path, render_index(build_run_index(load_run_results(folder, planned, curves))).encode()
    )


def _write_failed_pages(options: argparse.Namespace) -> None:
    """The pages of the models that are not done and the index, without the marks that they are
    done; raises ArtifactError behind these, where a model whose files are damaged has none."""
    from tightfit.schemas.lineage import remove_with_lineage
    from tightfit.stages.report.load import MODEL_PAGE_FILE

    planned, damaged = _planned_points(options), []
    for folder in _failed_models(options):
        (folder / PAGE_DONE_FILE).unlink(missing_ok=True)
        try:
            points = planned.get(folder.name, ())
            _write_model_page(folder, folder / MODEL_PAGE_FILE, not options.plans_only, points)
        except ArtifactError as error:
            remove_with_lineage(folder / MODEL_PAGE_FILE)
            damaged.append(str(error))
    (options.failed / "index.done").unlink(missing_ok=True)
    _write_index_page(options.failed, options.out, not options.plans_only, planned)
    if damaged:
        raise ArtifactError("; ".join(damaged))


def _failed_models(options: argparse.Namespace) -> list[Path]:
    """The folders of models of which something failed, or whose page a run has not come to."""
    from tightfit.stages.report.load import load_run_results

    folders = []
    for model in load_run_results(options.failed, _planned_points(options)):
        folder = options.failed / model.name
        failed = model.error or model.failures or any(plan.error for plan in model.plans)
        if failed or not (folder / PAGE_DONE_FILE).exists():
            folders.append(folder)
    return folders


def _planned_points(options: argparse.Namespace) -> dict[str, list[str]]:
    """The points that a run was for, as strategy/budget, by model."""
    points: dict[str, list[str]] = {}
    for path in options.planned:
        if len(path.parts) < 4:
            raise ConfigError(f"--planned {path}: expected MODEL/STRATEGY/BUDGET/plan.json")
        model, strategy, budget = path.parts[-4:-1]
        points.setdefault(model, []).append(f"{strategy}/{budget}")
    return points


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
    from tightfit.stages.simulate.simulate import simulate

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
        passing = simulate(graph, costs, steps, link=link, updates=updates).passing
    ran = read_memory_timeline(options.timeline) if options.timeline is not None else ()
    document = build_trace(graph, steps, passing, ran)
    write_bytes(options.out, json.dumps(document, separators=(",", ":")).encode())
