"""Pipelines in two calls: one plans, in one process; the other runs, in each of the ranks."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

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
    """The plan of a pipeline with its package.

    Attributes:
        package: Folder of the generated package, which `load_pipeline` takes.
        split: Folder with the graph and the schedule of each stage.
        peaks: For each rank, the most bytes of its step beyond parameters, buffers and inputs.

    Example:
        >>> plan = tightfit.plan_pipeline(model, (x,), loss=loss, machine="machine.json")
        >>> print(plan.ranks, plan.period, plan.peaks)
    """

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

    Args:
        model: The model, on the CPU.
        args: Positional arguments of the call of one microbatch.
        kwargs: Keyword arguments of that call.
        machine: Path of a `tightfit.machine/1` document (.json): devices with their memory in
            bytes, links with their bandwidth in bytes per second.
        microbatches: Number of microbatches of a step.
        strategy: Allocator of layers to devices: "pipedream", "gpipe", "one_f_one_b",
            "k_periodic", "pipeline_ilp" or "madpipe" (Beaumont, Eyraud-Dubois and Shilova, ScaDL
            2022).
        loss: Function from the model's output to a tensor with one element; not needed if the
            output is one.
        stage_recompute: How stages recompute what they do not store: "rotor", "rockmate", or ""
            for not at all.
        weight_copies: How many times a device stores its parameters: themselves, their gradients
            and what the optimizer keeps.
        solver: Its engine solves the integer programs of the allocator and of the blocks of
            `stage_recompute="rockmate"`; its jobs are the processes that solve blocks.
        store: Folder in which measured costs and solved blocks are kept; by default `tightfit` in
            the user's cache folder.
        operators: Namespaces of custom operators that the model may call, as in `plan`.
        progress: Whether standard error shows the progress.

    Returns:
        The plan; `package` is the folder that `load_pipeline` takes.

    Raises:
        ConfigError: Nothing fits (the message says what is known to work), or an argument is
            wrong.
        ModelError: The model cannot be captured, or cannot be a pipeline.

    Example:
        >>> plan = tightfit.plan_pipeline(model, (x,), loss=loss, machine="machine.json")
        >>> pipeline = tightfit.load_pipeline(plan.package, model)  # in each rank
    """
    import torch

    from tightfit.stages.torch_utils.custom_operators import allow_operators

    if strategy not in ALLOCATORS:
        known = ", ".join(ALLOCATORS)
        raise ConfigError(f"plan_pipeline: strategy is {strategy!r}, expected one of {known}")
    _check_engine(solver.engine, strategy, stage_recompute)
    _check_pipeline_settings(strategy, microbatches, stage_recompute, weight_copies)
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


def _check_pipeline_settings(
    strategy: str, microbatches: int, stage_recompute: str, weight_copies: int
) -> None:
    """Raises ConfigError for what no pipeline is planned with, before anything is measured."""
    from tightfit.schemas.pipeline import MAX_MICROBATCHES
    from tightfit.stages.combine.pipeline.plan_task import MAX_WEIGHT_COPIES

    for name, value, least, most in (
        ("microbatches", microbatches, 1, MAX_MICROBATCHES),
        ("weight_copies", weight_copies, 0, MAX_WEIGHT_COPIES),
    ):
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise ConfigError(
                f"plan_pipeline: {name} is {value!r}, expected a number from {least} to {most}"
            )
    if stage_recompute and not ALLOCATORS[strategy].inside:
        able = ", ".join(name for name, about in ALLOCATORS.items() if about.inside)
        raise ConfigError(
            f"plan_pipeline: stage_recompute is {stage_recompute!r}, which only the strategies "
            f"{able} take"
        )


def _plan_stages(
    runner: StageRunner, graph: Path, costs: Path, machine: Path, settings: Mapping[str, Any]
) -> MadePipeline:
    from tightfit.stages.combine.pipeline.plan_task import PipelineTask
    from tightfit.stages.combine.pipeline.split_task import SplitTask
    from tightfit.stages.generate.task import PackageTask
    from tightfit.stages.partition.task import PartitionTask
    from tightfit.stages.solve.task import SolveTask

    key = hashlib.sha256(read_bytes(machine) + json.dumps(settings).encode()).hexdigest()[:16]
    place = runner.place(costs) / "pipelines" / key
    chain, blocks, plan = place / "chain.arrow", place / "blocks.arrow", place / "plan"
    split, package = place / "split", place / "module"
    runner.run(PartitionTask(graph, costs, blocks, chain))
    stage_recompute, solver = settings["stage_recompute"] or None, runner.solver
    about, microbatches = ALLOCATORS[settings["strategy"]], settings["microbatches"]
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
            solver=runner.engine if about.solves else None,
            microbatches=microbatches,
        )
    )
    made = read_pipeline_plan(plan / "plan.json")
    if made.status == "infeasible":
        raise ConfigError(made.message)
    runner.run(SplitTask(graph, costs, blocks, plan, split, options, microbatches))
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
    """Loads what this process runs of a pipeline.

    Args:
        package: Folder of the package that `plan_pipeline` wrote.
        model: The model that was planned, the same in each rank.
        rank: Rank of this process; by default that of `torch.distributed`.
        group: Process group with one process for each rank; by default all processes.
        light: Whether the memory of parameters that only other ranks use is given back.

    Returns:
        The pipeline of this rank: `step(calls, loss)` runs one training step, with `calls` the
        (args, kwargs) of each microbatch, and returns the losses on the rank of the last layer
        (`step(calls)` for a model that returns its loss); `parameters()` are those to optimize.

    Raises:
        ArtifactError: The folder has no pipeline, or one of another model or number of ranks.

    Example:
        >>> pipeline = tightfit.load_pipeline(plan.package, model)
        >>> optimizer = torch.optim.SGD(pipeline.parameters(), 0.1)
        >>> losses = pipeline.step([((x,), {}) for x in microbatches], loss)
        >>> optimizer.step()
    """
    from tightfit.stages.validate.load import load_package, require_plan
    from tightfit.util.tracebacks import describe_error

    found = load_package(package)
    require_plan(found, package)
    load = getattr(found, "load_pipeline", None)
    if not callable(load):
        raise ArtifactError(f"{package}: is no pipeline, but for one device: load(FOLDER, model)")
    try:
        return load(model, rank, group, light)
    except RuntimeError as error:
        raise ArtifactError(f"{package}: {describe_error(error).partition(': ')[2]}") from error
