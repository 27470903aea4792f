"""Checks what the ranks of a pipeline run, and what was measured of them, against their files."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path

from tightfit.schemas import store
from tightfit.schemas.costs import read_costs
from tightfit.schemas.graph.training_graph import read_graph
from tightfit.schemas.pipeline import (
    PIPELINE_FILE,
    PipelineSchedule,
    PipelineStage,
    read_pipeline,
    stage_files,
    stage_folder,
)
from tightfit.schemas.pipeline_measurement import (
    FAILED_STATUS,
    MeasuredRank,
    read_pipeline_measurement,
)
from tightfit.schemas.pipeline_plan import read_pipeline_plan
from tightfit.schemas.plan_folders import PLAN_PATH
from tightfit.schemas.schedule import read_schedule
from tightfit.stages.simulate.pipeline_rank_check import check_ranks
from tightfit.stages.simulate.simulate import simulate
from tightfit.util.errors import ScheduleError

RANKS_FOLDER = "ranks"
"""The folder of what the ranks run, beside plan/ and measurement.json."""


def check_pipeline_files(path: Path, damaged: Collection[Path]) -> Iterator[str]:
    """What is wrong with a pipeline.json and the stages beside it, a sentence each."""
    pipeline = read_pipeline(path)
    yield from _check_plan(path, pipeline, damaged)
    for rank, name in enumerate(pipeline.devices):
        needed = pipeline.fixed[rank] + pipeline.peaks[rank]
        if needed > pipeline.memory[rank]:
            yield f"{path}: {name} takes {needed} bytes and has {pipeline.memory[rank]}"
    files = stage_files(path.parent, pipeline)
    if not pipeline.feasible or any(file in damaged for file in files):
        return
    wrong = [sentence for stage in pipeline.stages for sentence in _check_stage(path, stage)]
    yield from wrong
    graph, costs = (_nearest_file(path, f"{name}.arrow", damaged) for name in ("graph", "costs"))
    if wrong or graph is None or costs is None:
        return
    if store.read_header(graph).digest != pipeline.graph:
        yield f"{path}: was split from another {graph.name} than is there now"
        return
    graphs = [read_graph(file) for file in files[::2]]
    try:
        check_ranks(pipeline, read_graph(graph), graphs)
        for own, file in zip(graphs, files[1::2], strict=True):
            simulate(own, read_costs(costs), read_schedule(file))
    except ScheduleError as error:
        yield f"{path}: {error}"


def _check_stage(path: Path, stage: PipelineStage) -> Iterator[str]:
    folder = path.parent / stage_folder(stage.stage)
    missing = [name for name in ("graph.arrow", "schedule.arrow") if not (folder / name).exists()]
    if missing:
        yield f"{folder / missing[0]}: is missing, {path.name} names it"
        return
    schedule = store.read_header(folder / "schedule.arrow")
    if schedule.digest != stage.schedule:
        yield f"{folder}: has another schedule.arrow than {path.name} names"
    if schedule.metadata.get("graph") != store.read_header(folder / "graph.arrow").digest:
        yield f"{folder}: has the schedule of another graph.arrow"


def _check_plan(path: Path, pipeline: PipelineSchedule, damaged: Collection[Path]) -> Iterator[str]:
    """The plan beside allocates the same positions to the same devices."""
    plan = path.parent.parent.joinpath(*PLAN_PATH)
    if plan in damaged:
        return
    if not plan.exists():
        yield f"{path}: the plan that it was made of, {plan}, is gone; run again"
        return
    planned = [(row.first, row.last, row.device) for row in read_pipeline_plan(plan).stages]
    split = [(row.first, row.last, pipeline.devices[row.rank]) for row in pipeline.stages]
    if planned != split:
        yield f"{path}: has stages {split}, in {plan.name} {planned}"


def _nearest_file(path: Path, name: str, damaged: Collection[Path]) -> Path | None:
    """The file of that name in the nearest folder above the ranks, None where it is damaged."""
    places = (folder / name for folder in path.parent.parents)
    near = next((place for place in places if place.exists()), None)
    return None if near in damaged else near


def check_pipeline_measurement(path: Path, damaged: Collection[Path]) -> Iterator[str]:
    """What is wrong with the measurement of a pipeline, by its ranks and those beside it."""
    measured, ranks = read_pipeline_measurement(path), path.parent / RANKS_FOLDER / PIPELINE_FILE
    broken = [rank for rank in measured.ranks if not _keeps_promise(rank)]
    if bool(broken) != (measured.status == FAILED_STATUS):
        kept = f"{len(broken)} of its ranks are not as predicted"
        yield f"{path}: its status is {measured.status}, where {kept}"
    if ranks in damaged:
        return
    if not ranks.exists():
        yield f"{path}: the pipeline that it measured, {ranks}, is gone; run again"
        return
    pipeline = read_pipeline(ranks)
    found = [(row.device, row.baseline, row.memory, row.predicted_peak) for row in measured.ranks]
    sizes = (pipeline.devices, pipeline.fixed, pipeline.memory, pipeline.peaks)
    if found != list(zip(*sizes, strict=True)):
        yield f"{path}: is the measurement of another pipeline than {RANKS_FOLDER}/{ranks.name}"


def _keeps_promise(rank: MeasuredRank) -> bool:
    equal = not rank.first_difference and rank.measured_peak == rank.predicted_peak
    return equal and rank.within_budget
