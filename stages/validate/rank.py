"""One rank of a pipeline that is validated: a process that compares and measures."""

from __future__ import annotations

import contextlib
import gc
import json
import statistics
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed
from torch import nn

from tightfit.schemas.pipeline_measurement import TimedAction
from tightfit.stages.device.factory import Built
from tightfit.stages.device.meter import session
from tightfit.stages.device.trees import flatten
from tightfit.stages.validate.compare import difference, same_bits
from tightfit.stages.validate.load import load_package

if TYPE_CHECKING:
    from tightfit.stages.validate.pipeline import Source


@dataclass(frozen=True)
class Job:
    """What all ranks know: how the model is built, the folder of the package, the one that they
    meet in, the seed of random numbers, how many steps are timed, and the threads of a rank."""

    source: Source
    module: str
    folder: str
    seed: int
    steps: int
    threads: int


def work(rank: int, count: int, job: Job) -> None:
    """Runs a rank and writes what it measured into the folder."""
    torch.set_num_threads(job.threads)
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{job.folder}/meet", rank=rank, world_size=count
    )
    try:
        found = _measured(rank, job)
        (Path(job.folder) / f"rank-{rank}.json").write_text(json.dumps(found))
        torch.distributed.barrier()
    finally:
        torch.distributed.destroy_process_group()


def _measured(rank: int, job: Job) -> dict[str, Any]:
    calls, reference = torch.load(Path(job.folder) / "reference.pt", weights_only=False)
    built = job.source.build()
    pipeline = load_package(job.module).load_pipeline(built.model, rank)
    compared = _compared(pipeline, built, calls, reference, job.seed)
    peak = _peak(pipeline, built, calls)
    seconds, timeline = _times(pipeline, built, calls, job.steps)
    return {
        "rank": rank,
        "measured_peak": peak,
        "seconds": seconds,
        "steps": job.steps,
        **compared,
        "timeline": [asdict(action) for action in timeline],
    }


def _compared(
    pipeline: Any, built: Built, calls: list[Any], reference: dict[str, Any], seed: int
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
        for both in zip(_plain(output), reference["outputs"][at], strict=True)
    ]
    random = [("state of random numbers", (torch.get_rng_state(), reference["random"]))]
    everything = [*lost, *given, *gradients.items(), *buffers.items(), *random]
    first = next((name for name, both in everything if not same_bits(*both)), "")
    return {
        "loss_difference": _largest(lost),
        "output_difference": _largest(given),
        "gradient_difference": _largest(list(gradients.items())),
        "buffer_difference": _largest(list(buffers.items())),
        "first": first,
    }


def _plain(output: Any) -> list[Any]:
    leaves = flatten(output)[0]
    return [leaf.detach() if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]


def _largest(pairs: list[tuple[str, tuple[Any, Any]]]) -> float:
    return max((difference(mine, other) for _, (mine, other) in pairs), default=0.0)


def _peak(pipeline: Any, built: Built, calls: list[Any]) -> int:
    """The most bytes of a step that finds no `.grad`."""
    built.model.zero_grad(set_to_none=True)
    gc.collect()
    with _as_before(built.model), session("cpu", lines=True) as running:
        running.mark("begin")
        alive = pipeline.step(calls, built.loss)
        running.mark("end")
    del alive
    return running.usage("begin", "end").peak


def _times(
    pipeline: Any, built: Built, calls: list[Any], steps: int
) -> tuple[float, list[TimedAction]]:
    """The median seconds of steps, and the actions of the last one."""
    seconds = []
    record: list[tuple[str, int, int, float, float]] = []
    with _as_before(built.model):
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


@contextlib.contextmanager
def _as_before(model: nn.Module) -> Iterator[None]:
    """The contents of a model's buffers come back at its end."""
    kept = {name: buffer.clone() for name, buffer in model.named_buffers()}
    yield
    with torch.no_grad():
        for name, buffer in model.named_buffers():
            buffer.copy_(kept[name])
