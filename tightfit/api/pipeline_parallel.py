"""Pipelines in two calls: one plans, in one process; the other runs, in each of the ranks."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from tightfit.api.package_task import PackageTask
from tightfit.api.plan_arguments import collect_samples, group_samples
from tightfit.api.plan_options import DEFAULT_SOLVER, SolverOptions
from tightfit.api.planning import suppress_warnings
from tightfit.api.progress_bar import PIPELINE_STAGE_LABELS, ProgressReporter
from tightfit.api.stage_runner import PLANNING_LOCK, StageRunner
from tightfit.schemas.pipeline_plan import PipelinePlan, read_pipeline_plan
from tightfit.schemas.store import read_bytes
from tightfit.util.errors import ArtifactError, ConfigError
from tightfit.util.paths import default_store_path
from tightfit.util.solver_engines import BLOCK_SOLVERS
from tightfit.util.strategies import ALLOCATORS

if TYPE_CHECKING:
    from torch import Tensor, nn


@dataclass(frozen=True)
class MadePipeline(PipelinePlan):
    """The plan of a pipeline with the folders of its `package` and of what its ranks run
    (`split`), and the most bytes of each rank's step beyond parameters, buffers and inputs."""

    package: Path = field(kw_only=True)
    split: Path = field(kw_only=True)
    peaks: tuple[int, ...] = field(kw_only=True)

    @property
    def ranks(self) -> int:
        """How many processes run it."""
        return len(self.peaks)


def plan_pipeline(
    model: nn.Module,
    args: tuple[Any, ...] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    machine: Path | str,
    microbatches: int = 4,
    strategy: str = "madpipe",
    loss: Callable[[Any], Tensor] | None = None,
    stage_recompute: Literal["", "rotor", "rockmate"] = "",
    weight_copies: int = 2,
    solver: SolverOptions = DEFAULT_SOLVER,
    store: Path | str | None = None,
    operators: Iterable[str] = (),
    progress: bool = True,
) -> MadePipeline:
    """Plans a pipeline of a training step over the devices of a machine, and writes its package.

    `model(*args, **kwargs)` is the call of one microbatch, of which a step has `microbatches`.
    `machine` is the path of a `tightfit.machine/1`. `loss` is a function from the model's output to
    a scalar, needed unless the output is one. With `stage_recompute` stages compute again what they do not
    store. Parameters count `weight_copies` times: themselves, their gradients, and what the
    optimizer keeps. The engine of `solver` solves the integer programs of the allocator and of the
    blocks of `stage_recompute="rockmate"`. What was found out is kept in `store`, unless given the folder
    `tightfit` in the user's cache folder; `operators` are as in `plan`. Gives the plan; `package`
    is the folder that `load_pipeline` takes, or that is copied. Raises ConfigError where nothing
    fits, with what is known to work, ModelError where the model cannot be captured or be a
    pipeline.
    """
    import torch

    from tightfit.stages.torch_utils.custom_operators import allow_operators

    if strategy not in ALLOCATORS:
        known = ", ".join(ALLOCATORS)
        raise ConfigError(f"plan_pipeline: strategy is {strategy!r}, expected one of {known}")
    _check_engine(solver.engine, strategy, stage_recompute)
    place = default_store_path() if store is None else Path(store)
    telling = ProgressReporter(progress, stages=PIPELINE_STAGE_LABELS)
    with (
        PLANNING_LOCK,
        telling.show_stages(*(() if stage_recompute == "rockmate" else ("solve",))),
        suppress_warnings(),
        torch.inference_mode(False),
        torch.enable_grad(),
        allow_operators(operators),
    ):
        [built], device = group_samples(model, collect_samples(args, kwargs, None), loss, None)
        if device != "cpu":
            raise ConfigError(f"pipelines run on CPUs so far, and the model is on {device}")
        runner = StageRunner(place, device, strategy, solver, telling)
        graph = runner.trace(built)
        costs = runner.profile(built, graph)
        settings = {
            "strategy": strategy,
            "microbatches": microbatches,
            "stage_recompute": stage_recompute,
            "weight_copies": weight_copies,
            "engine": solver.engine,
        }
        return _plan_stages(runner, graph, costs, Path(machine), settings)


def _check_engine(engine: str, strategy: str, stage_recompute: str) -> None:
    """Raises ConfigError where an engine is none, or has nothing to solve."""
    if engine not in BLOCK_SOLVERS:
        raise ConfigError(
            f"plan_pipeline: engine is {engine!r}, expected one of {', '.join(BLOCK_SOLVERS)}"
        )
    if engine != "none" and not ALLOCATORS[strategy].solves and stage_recompute != "rockmate":
        raise ConfigError(
            f"plan_pipeline: engine is {engine!r}, and {strategy} solves no integer program"
        )


def _plan_stages(
    runner: StageRunner, graph: Path, costs: Path, machine: Path, settings: Mapping[str, Any]
) -> MadePipeline:
    from tightfit.stages.combine.pipeline.plan_task import PipelineTask
    from tightfit.stages.combine.pipeline.split_task import SplitTask
    from tightfit.stages.partition.task import PartitionTask
    from tightfit.stages.solve.task import SolveTask

    key = hashlib.sha256(read_bytes(machine) + json.dumps(settings).encode()).hexdigest()[:16]
    place = runner.place(costs) / "pipelines" / key
    chain, blocks, plan = place / "chain.arrow", place / "blocks.arrow", place / "plan"
    split, package = place / "split", place / "module"
    runner.run(PartitionTask(graph, costs, blocks, chain))
    stage_recompute, solver = settings["stage_recompute"] or None, runner.solver
    options = place / "options.arrow" if stage_recompute == "rockmate" else None
    if options is not None:
        levels, jobs = (solver.peak_levels, solver.save_levels), solver.jobs or 1
        runner.run(SolveTask(blocks, runner.store, solver.engine, *levels, jobs, options))
    runner.run(
        PipelineTask(
            chain,
            machine,
            settings["strategy"],
            plan,
            weight_copies=settings["weight_copies"],
            stage_recompute=stage_recompute,
            options=options,
            solver=runner.engine if ALLOCATORS[settings["strategy"]].solves else None,
        )
    )
    made = read_pipeline_plan(plan / "plan.json")
    if made.status == "infeasible":
        raise ConfigError(made.message)
    runner.run(SplitTask(graph, costs, blocks, plan, split, options, settings["microbatches"]))
    runner.run(PackageTask([graph], plan / "plan.json", package, pipeline=split))
    return _planned_pipeline(made, package, split)


def _planned_pipeline(plan: PipelinePlan, package: Path, split: Path) -> MadePipeline:
    from tightfit.schemas.pipeline import PIPELINE_FILE, read_pipeline

    known = {part.name: getattr(plan, part.name) for part in fields(PipelinePlan)}
    peaks = tuple(read_pipeline(split / PIPELINE_FILE).peaks)
    return MadePipeline(**known, package=package, split=split, peaks=peaks)


def load_pipeline(
    package: Path | str,
    model: nn.Module,
    rank: int | None = None,
    group: Any = None,
    light: bool = False,
) -> Any:
    """What this process runs of a pipeline, by its package in a folder: see the package's own
    `load_pipeline`. The `step(calls, loss)` of what is loaded is one training step, its
    `parameters()` are those to optimize.

    Raises ArtifactError where the folder holds no pipeline, or one of another model or group.
    """
    from tightfit.stages.validate.load import describe_error, load_package

    found = load_package(package)
    load = getattr(found, "load_pipeline", None)
    if not callable(load):
        raise ArtifactError(f"{package}: is no pipeline, but for one device: load(FOLDER, model)")
    try:
        return load(model, rank, group, light)
    except RuntimeError as error:
        raise ArtifactError(f"{package}: {describe_error(error).partition(': ')[2]}") from error
