"""Validates a pipeline: starts its ranks on this machine and holds them to one process."""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.multiprocessing.spawn import ProcessException, spawn

from tightfit.schemas.errors import ModelError
from tightfit.schemas.pipeline import Pipeline
from tightfit.schemas.pipeline_measurement import (
    FAILED,
    MeasuredRank,
    PipelineMeasurement,
    rank_of_row,
)
from tightfit.schemas.pipeline_plan import PipelinePlan
from tightfit.schemas.telling import Doing, Telling
from tightfit.stages.device.factory import Built, Sample, build
from tightfit.stages.device.trees import flatten
from tightfit.stages.validate.contents import fresh_contents, own_copy
from tightfit.stages.validate.load import describe
from tightfit.stages.validate.rank import Job, work

SEED = 20_000
STEPS = 3
ONE_PROCESS = "a step of one process"


@dataclass(frozen=True)
class Source:
    """How a model is built: its factory with arguments, and where it is looked for."""

    factory: str
    arguments: Mapping[str, Any]
    search_path: Sequence[str]

    def build(self) -> Built:
        """The model with its samples, the same each time."""
        torch.manual_seed(SEED)
        return build(self.factory, self.arguments, search_path=self.search_path)


def microbatches_of(built: Built, count: int) -> list[Sample]:
    """Calls for the microbatches of a step: the factory's own samples, then others of their
    shapes."""
    samples = [own_copy(sample) for sample in built.samples[:count]]
    first = built.samples[0]
    more = range(count - len(samples))
    return samples + [fresh_contents(first, SEED + number) for number in more]


def one_process(
    model: nn.Module, built: Built, calls: Sequence[Sample]
) -> tuple[list[Tensor], list[Any]]:
    """The losses and the outputs' leaves of the calls, one after the other; gradients are added to
    `.grad`."""
    losses, outputs = [], []
    for args, kwargs in calls:
        output = model(*args, **kwargs)
        outputs.append([_plain(leaf) for leaf in flatten(output)[0]])
        loss = built.loss(output) if built.loss is not None else _scalar(output)
        loss.backward()
        losses.append(loss.detach().clone())
    return losses, outputs


def _plain(leaf: Any) -> Any:
    return leaf.detach().clone() if isinstance(leaf, Tensor) else leaf


def _scalar(output: Any) -> Tensor:
    [loss] = [
        leaf for leaf in flatten(output)[0] if isinstance(leaf, Tensor) and leaf.requires_grad
    ]
    return loss


def validate_pipeline(
    source: Source,
    pipeline: Pipeline,
    plan: PipelinePlan,
    module: Path,
    report: Telling | None = None,
) -> PipelineMeasurement:
    """Runs a pipeline's package beside one process over the same microbatches; `report` is told of
    each step of that one, and of those of all ranks together.

    Raises ModelError, in a sentence, where a rank ends before it is done.
    """
    built = source.build()
    calls = microbatches_of(built, pipeline.microbatches)
    told = Doing(report, STEPS + 3)
    seconds = _reference_seconds(built, calls, told)
    built = source.build()
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        torch.manual_seed(SEED)
        told(ONE_PROCESS)
        losses, outputs = one_process(built.model, built, calls)
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
        ranks = _run(
            Job(source, str(module), folder, SEED, STEPS, torch.get_num_threads()), pipeline
        )
    return _measurement(pipeline, plan, ranks, seconds)


def _reference_seconds(built: Built, calls: Sequence[Sample], told: Doing) -> float:
    """The median seconds of a step of one process, after one to warm up."""
    found = []
    for _ in range(STEPS + 1):
        told(ONE_PROCESS)
        built.model.zero_grad(set_to_none=True)
        start = time.perf_counter()
        one_process(built.model, built, calls)
        found.append(time.perf_counter() - start)
    return statistics.median(found[1:])


def _run(job: Job, pipeline: Pipeline) -> list[MeasuredRank]:
    """Starts the ranks and collects what they measured."""
    count = pipeline.ranks
    try:
        spawn(work, args=(count, job), nprocs=count, join=True)
    except ProcessException as error:
        said = str(error).strip().splitlines()
        last = said[-1] if said else describe(error)
        raise ModelError(f"rank {error.error_index} of the pipeline ended: {last}") from error
    ranks = []
    for rank in range(count):
        row = json.loads((Path(job.folder) / f"rank-{rank}.json").read_bytes())
        known = {
            "device": pipeline.devices[rank],
            "fixed": pipeline.fixed[rank],
            "memory": pipeline.memory[rank],
            "predicted_peak": pipeline.peaks[rank],
        }
        ranks.append(rank_of_row({**row, **known}))
    return ranks


def _measurement(
    pipeline: Pipeline, plan: PipelinePlan, ranks: list[MeasuredRank], seconds: float
) -> PipelineMeasurement:
    wrong = _contradiction(ranks)
    step = max(rank.seconds for rank in ranks)
    said = (
        f"{len(ranks)} ranks compute what one process does, bit for bit, in the memory that was "
        f"predicted, a step in {step:.4g} s where it takes {seconds:.4g}"
    )
    return PipelineMeasurement(
        model=pipeline.model,
        strategy=plan.strategy,
        verdict=FAILED if wrong else plan.verdict,
        sentence=wrong or said,
        microbatches=pipeline.microbatches,
        one_process=seconds,
        ranks=ranks,
    )


def _contradiction(ranks: Sequence[MeasuredRank]) -> str:
    """What is not as it was promised, "" where all is."""
    for rank in ranks:
        who = f"rank {rank.rank} ({rank.device})"
        if rank.first:
            return f"{who} computes another {rank.first} than one process"
        if rank.measured_peak != rank.predicted_peak:
            return (
                f"{who} takes {rank.measured_peak} bytes where {rank.predicted_peak} were predicted"
            )
        if not rank.within_budget:
            return (
                f"{who} takes {rank.fixed + rank.measured_peak} bytes, parameters included, of "
                f"{rank.memory}"
            )
    return ""
