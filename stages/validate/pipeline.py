"""Validates a pipeline: starts its ranks on this machine and holds them to one process."""

from __future__ import annotations

import gc
import json
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed
from torch import Tensor, nn
from torch.multiprocessing.spawn import ProcessException, spawn

from tightfit.schemas.pipeline import PipelineSchedule
from tightfit.schemas.pipeline_measurement import (
    FAILED_STATUS,
    MeasuredRank,
    PipelineMeasurement,
    TimedAction,
    measured_rank_from_row,
)
from tightfit.schemas.pipeline_plan import PipelinePlan
from tightfit.schemas.store import write_bytes
from tightfit.stages.runtime.pytree import flatten
from tightfit.stages.torch_utils.memory_meter import memory_session
from tightfit.stages.torch_utils.model_factory import BuiltModel, Sample, build_from_factory
from tightfit.stages.validate.load import load_package
from tightfit.stages.validate.measure import restore_buffers
from tightfit.stages.validate.step_results import max_abs_difference, same_bits
from tightfit.stages.validate.training_step import copy_sample, randomize_sample
from tightfit.util.command_line import format_duration
from tightfit.util.errors import ModelError
from tightfit.util.processes import usable_cores
from tightfit.util.progress import LabeledProgressCounter, ProgressCallback
from tightfit.util.tracebacks import describe_error


@dataclass(frozen=True)
class RankJob:
    """What all ranks know: how the model is built, the folder of the package, the one that they
    meet in, the seed of random numbers, how many steps are timed, and the threads of a rank."""

    source: ModelSource
    module: str
    folder: str
    seed: int
    steps: int
    threads: int


def run_pipeline_rank(rank: int, count: int, job: RankJob) -> None:
    """Runs a rank and writes what it measured into the folder, or the error that ended it."""
    try:
        _run_rank(rank, count, job)
    except Exception as error:
        # A rank that loses this one does so later: this is written before the group ends.
        found = {"nanoseconds": time.monotonic_ns(), "message": describe_error(error)}
        write_bytes(_error_file(job, rank), json.dumps(found).encode())
        raise
    finally:
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()


def _error_file(job: RankJob, rank: int) -> Path:
    return Path(job.folder) / f"error-{rank}.json"


def _run_rank(rank: int, count: int, job: RankJob) -> None:
    torch.set_num_threads(job.threads)
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{job.folder}/meet", rank=rank, world_size=count
    )
    found = _measure_rank(rank, job)
    (Path(job.folder) / f"rank-{rank}.json").write_text(json.dumps(found))
    torch.distributed.barrier()


def _measure_rank(rank: int, job: RankJob) -> dict[str, Any]:
    calls, reference = torch.load(Path(job.folder) / "reference.pt", weights_only=False)
    built = job.source.build()
    pipeline = load_package(job.module).load_pipeline(built.model, rank)
    compared = _compare_rank(pipeline, built, calls, reference, job.seed)
    peak = _measure_rank_peak(pipeline, built, calls)
    seconds, timeline = _time_rank_steps(pipeline, built, calls, job.steps)
    return {
        "rank": rank,
        "measured_peak": peak,
        "seconds": seconds,
        "steps": job.steps,
        **compared,
        "timeline": [asdict(action) for action in timeline],
    }


def _compare_rank(
    pipeline: Any, built: BuiltModel, calls: list[Any], reference: dict[str, Any], seed: int
) -> dict[str, Any]:
    """The differences from one process, of which the model has the same state."""
    torch.manual_seed(seed)
    outputs: list[Any] = []
    losses = pipeline.step(calls, built.loss, outputs=outputs)
    own = {name for name, _ in pipeline.named_parameters()}
    gradients = {
        f"gradient of {name}": (parameter.grad, reference["gradients"][name])
        for name, parameter in built.model.named_parameters()
        if name in own
    }
    kept = {tensor.path for tensor in pipeline.interface.tensors if tensor.kind == "buffer"}
    buffers = {
        f"buffer {name}": (buffer, reference["buffers"][name])
        for name, buffer in built.model.named_buffers()
        if name in kept
    }
    if losses and (len(losses), len(outputs)) != (len(calls), len(calls)):
        raise RuntimeError("the last rank has not every loss and output")
    lost = [(f"loss {at}", (loss, reference["losses"][at])) for at, loss in enumerate(losses)]
    given = [
        (f"output of microbatch {at}", both)
        for at, output in enumerate(outputs)
        for both in zip(_detached_leaves(output), reference["outputs"][at], strict=True)
    ]
    random = [("state of random numbers", (torch.get_rng_state(), reference["random"]))]
    everything = [*lost, *given, *gradients.items(), *buffers.items(), *random]
    first = next((name for name, both in everything if not same_bits(*both)), "")
    return {
        "loss_difference": _largest_difference(lost),
        "output_difference": _largest_difference(given),
        "gradient_difference": _largest_difference(list(gradients.items())),
        "buffer_difference": _largest_difference(list(buffers.items())),
        "first_difference": first,
    }


def _detached_leaves(output: Any) -> list[Any]:
    leaves = flatten(output)[0]
    return [leaf.detach() if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]


def _largest_difference(pairs: list[tuple[str, tuple[Any, Any]]]) -> float:
    return max((max_abs_difference(mine, other) for _, (mine, other) in pairs), default=0.0)


def _measure_rank_peak(pipeline: Any, built: BuiltModel, calls: list[Any]) -> int:
    """The most bytes of a step that finds no `.grad`."""
    built.model.zero_grad(set_to_none=True)
    gc.collect()
    with restore_buffers(built.model), memory_session("cpu", lines=True) as running:
        running.mark("begin")
        alive = pipeline.step(calls, built.loss)
        running.mark("end")
    del alive
    return running.usage("begin", "end").peak


def _time_rank_steps(
    pipeline: Any, built: BuiltModel, calls: list[Any], steps: int
) -> tuple[float, list[TimedAction]]:
    """The median seconds of steps, and the actions of the last one."""
    seconds = []
    record: list[tuple[str, int, int, float, float]] = []
    with restore_buffers(built.model):
        for _ in range(steps):
            built.model.zero_grad(set_to_none=True)
            record.clear()
            torch.distributed.barrier()
            start = time.perf_counter()
            pipeline.step(calls, built.loss, record=record)
            seconds.append(time.perf_counter() - start)
    timeline = [
        TimedAction(kind, subject, microbatch, begin - start, end - start)
        for kind, subject, microbatch, begin, end in record
    ]
    return statistics.median(seconds), timeline


SEED = 20_000
STEPS = 3
ONE_PROCESS_STEP = "a step of one process"


@dataclass(frozen=True)
class ModelSource:
    """How a model is built: its factory with arguments, and where it is looked for."""

    factory: str
    arguments: Mapping[str, Any]
    search_path: Sequence[str]

    def build(self) -> BuiltModel:
        """The model with its samples, the same each time."""
        torch.manual_seed(SEED)
        return build_from_factory(self.factory, self.arguments, search_path=self.search_path)


def make_microbatches(built: BuiltModel, count: int) -> list[Sample]:
    """Calls for the microbatches of a step: the factory's own samples, then others of their
    shapes."""
    samples = [copy_sample(sample) for sample in built.samples[:count]]
    first = built.samples[0]
    more = range(count - len(samples))
    return samples + [randomize_sample(first, SEED + number) for number in more]


def run_one_process(
    model: nn.Module, built: BuiltModel, calls: Sequence[Sample]
) -> tuple[list[Tensor], list[Any]]:
    """The losses and the outputs' leaves of the calls, one after the other; gradients are added to
    `.grad`."""
    losses, outputs = [], []
    for args, kwargs in calls:
        output = model(*args, **kwargs)
        outputs.append([_copy_leaf(leaf) for leaf in flatten(output)[0]])
        loss = built.loss(output) if built.loss is not None else _find_loss_output(output)
        loss.backward()
        losses.append(loss.detach().clone())
    return losses, outputs


def _copy_leaf(leaf: Any) -> Any:
    return leaf.detach().clone() if isinstance(leaf, Tensor) else leaf


def _find_loss_output(output: Any) -> Tensor:
    [loss] = [
        leaf for leaf in flatten(output)[0] if isinstance(leaf, Tensor) and leaf.requires_grad
    ]
    return loss


def validate_pipeline(
    source: ModelSource,
    pipeline: PipelineSchedule,
    plan: PipelinePlan,
    module: Path,
    report: ProgressCallback | None = None,
) -> PipelineMeasurement:
    """Runs a pipeline's package beside one process over the same microbatches; `report` is told of
    each step of that one, and of those of all ranks together.

    Raises ModelError, in a sentence, where a rank ends before it is done.
    """
    built = source.build()
    calls = make_microbatches(built, pipeline.microbatches)
    told = LabeledProgressCounter(report, STEPS + 3)
    seconds = _reference_seconds(built, calls, told)
    built = source.build()
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        torch.manual_seed(SEED)
        told(ONE_PROCESS_STEP)
        losses, outputs = run_one_process(built.model, built, calls)
        reference = {
            "losses": losses,
            "outputs": outputs,
            "gradients": {
                name: parameter.grad for name, parameter in built.model.named_parameters()
            },
            "buffers": dict(built.model.named_buffers()),
            "random": torch.get_rng_state(),
        }
        torch.save((calls, reference), place / "reference.pt")
        del built, reference
        told(f"{STEPS} steps of {pipeline.ranks} ranks")
        ranks = _run_ranks(
            RankJob(source, str(module), folder, SEED, STEPS, torch.get_num_threads()), pipeline
        )
    return _build_measurement(pipeline, plan, ranks, seconds)


def _reference_seconds(
    built: BuiltModel, calls: Sequence[Sample], told: LabeledProgressCounter
) -> float:
    """The median seconds of a step of one process, after one to warm up."""
    found = []
    for _ in range(STEPS + 1):
        told(ONE_PROCESS_STEP)
        built.model.zero_grad(set_to_none=True)
        start = time.perf_counter()
        run_one_process(built.model, built, calls)
        found.append(time.perf_counter() - start)
    return statistics.median(found[1:])


def _run_ranks(job: RankJob, pipeline: PipelineSchedule) -> list[MeasuredRank]:
    """Starts the ranks and collects what they measured."""
    count = pipeline.ranks
    try:
        spawn(run_pipeline_rank, args=(count, job), nprocs=count, join=True)
    except ProcessException as error:
        last = str(error).strip().splitlines()[-1]
        rank, message = _first_error(job, count) or (error.error_index, last)
        raise ModelError(f"rank {rank} of the pipeline ended: {message}") from error
    ranks = []
    for rank in range(count):
        row = json.loads((Path(job.folder) / f"rank-{rank}.json").read_bytes())
        known = {
            "device": pipeline.devices[rank],
            "baseline": pipeline.fixed[rank],
            "memory": pipeline.memory[rank],
            "predicted_peak": pipeline.peaks[rank],
        }
        ranks.append(measured_rank_from_row({**row, **known}))
    return ranks


def _first_error(job: RankJob, count: int) -> tuple[int, str] | None:
    """The rank that failed first, by which others may have lost it, and its error; None if no rank
    has written one."""
    found = []
    for rank in range(count):
        if (path := _error_file(job, rank)).exists():
            error = json.loads(path.read_bytes())
            found.append((error["nanoseconds"], rank, error["message"]))
    return min(found)[1:] if found else None


def infeasible_measurement(pipeline: PipelineSchedule, plan: PipelinePlan) -> PipelineMeasurement:
    """What there is to say of a plan that has no ranks."""
    return PipelineMeasurement(
        pipeline.model, plan.strategy, plan.status, plan.message, pipeline.microbatches, 0.0, []
    )


def _build_measurement(
    pipeline: PipelineSchedule, plan: PipelinePlan, ranks: list[MeasuredRank], seconds: float
) -> PipelineMeasurement:
    wrong = _describe_contradiction(ranks)
    step = max(rank.seconds for rank in ranks)
    said = (
        f"{len(ranks)} ranks compute what one process does, bit for bit, in the memory that was "
        f"predicted; a step takes {format_duration(step)}, one process {format_duration(seconds)}"
    )
    cores = usable_cores()
    if cores < len(ranks):
        said += f" ({len(ranks)} ranks share {cores} processors: this time does not compare plans)"
    return PipelineMeasurement(
        model=pipeline.model,
        strategy=plan.strategy,
        status=FAILED_STATUS if wrong else plan.status,
        message=wrong or said,
        microbatches=pipeline.microbatches,
        single_process_seconds=seconds,
        ranks=ranks,
        processors=cores,
    )


def _describe_contradiction(ranks: Sequence[MeasuredRank]) -> str:
    """What is not as it was promised, "" where all is."""
    for rank in ranks:
        who = f"rank {rank.rank} ({rank.device})"
        if rank.first_difference:
            return f"{who} computes another {rank.first_difference} than one process"
        if rank.measured_peak != rank.predicted_peak:
            return (
                f"{who} takes {rank.measured_peak} bytes where {rank.predicted_peak} were predicted"
            )
        if not rank.within_budget:
            return (
                f"{who} takes {rank.baseline + rank.measured_peak} bytes, parameters included, of "
                f"{rank.memory}"
            )
    return ""
