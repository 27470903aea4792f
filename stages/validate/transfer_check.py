"""What a planned module sends to an offload target: as its runs count it, and as its plan says."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from torch import nn

from tightfit.schemas.graph.training_graph import Graph
from tightfit.schemas.measurement import Measurement, TimelinePoint, downsample_timeline
from tightfit.schemas.plan import TransferTotals
from tightfit.stages.torch_utils.devices import preserve_random_states
from tightfit.stages.torch_utils.model_factory import BuiltModel
from tightfit.stages.validate.comparison import copy_model, freeze_garbage_collector
from tightfit.stages.validate.training_step import StepRunner, clear_gradients, copy_sample
from tightfit.util.command_line import format_duration

TRANSFER_LINES = ("offload", "prefetch")
"""The lines of the streams, in the order of what a run counts."""


def offload_target_name(device: str) -> str:
    """The name of the memory that a device sends to."""
    return "disk" if device == "cpu" else "host"


def last_transfers(planned: nn.Module) -> Any:
    """What the run of a planned module has moved that began last, None where it sends nothing."""
    sending = getattr(planned, "_tightfit_transfers", None)
    return None if sending is None else sending.last


def check_transfers(
    graph: Graph, built: BuiltModel, planned: nn.Module, foretold: TransferTotals | None
) -> tuple[str, str]:
    """Takes two steps of a copy of a planned module: what is wrong with what the second one sends,
    and what is to be said of it, "" for nothing. Model, samples and random numbers stay as they
    were."""
    if foretold is None and getattr(planned, "_tightfit_transfers", None) is None:
        return "", ""
    stepper, twin, sample = (
        StepRunner.of(graph, built),
        copy_model(planned),
        copy_sample(built.samples[0]),
    )
    with preserve_random_states(), freeze_garbage_collector():
        for _ in range(2):
            stepper.run(twin, sample)
            clear_gradients(twin, sample)
    moved, memory = last_transfers(twin), offload_target_name(graph.device)
    if said := describe_transfer_mismatch(foretold, memory, moved):
        return said, ""
    return "", "" if foretold is None else describe_transfers(foretold, memory, moved.waited)


def describe_transfer_mismatch(foretold: TransferTotals | None, memory: str, moved: Any) -> str:
    """What a run moved otherwise than the plan says, "" where it did as it says."""
    nothing = TransferTotals(0, 0, 0, 0.0)
    said, did = foretold or nothing, nothing
    if moved is not None:
        did = TransferTotals(moved.left, moved.returned, moved.peak, 0.0)
    for which, found, wanted in (
        (f"the {memory} has", did.host_peak, said.host_peak),
        (f"a step sends to the {memory}", did.offloaded_bytes, said.offloaded_bytes),
        (f"a step brings back from the {memory}", did.prefetched_bytes, said.prefetched_bytes),
    ):
        if found != wanted:
            return f"{which} {found} bytes where {wanted} were predicted"
    return ""


def describe_transfers(foretold: TransferTotals, memory: str, waited: float) -> str:
    """What is to be said of a step that sends as it was predicted."""
    return (
        f"measured, a step has {foretold.host_peak:,} bytes in the {memory} at most, as predicted, "
        f"and waits for {format_duration(waited)} where {format_duration(foretold.wait_seconds)} "
        "were predicted"
    )


def add_transfers(
    measured: Measurement, foretold: TransferTotals | None, moved: Any, waited: float | None
) -> Measurement:
    """A measurement with the bytes in the offload target and the time that was waited."""
    if foretold is None and moved is None:
        return measured
    return replace(
        measured,
        offload_target=offload_target_name(measured.device),
        predicted_offload_peak=0 if foretold is None else foretold.host_peak,
        offload_peak=0 if moved is None else moved.peak,
        wait_seconds=waited,
    )


def transfer_lines(moved: Any) -> Iterator[TimelinePoint]:
    """The lines of what a run moved: the bytes in the offload target, those on their way in each
    stream, and when it waited."""
    if moved is None:
        return
    levels = [(moved.since(moment), there) for moment, there in moved.line]
    yield from _thin_line("offloaded", [(0.0, 0), *levels])
    for name, spans in zip((*TRANSFER_LINES, "wait"), (*moved.streams, moved.waits), strict=True):
        points = [
            point
            for begin, end, size in spans
            for point in ((moved.since(begin), size), (moved.since(end), 0))
        ]
        yield from _thin_line(name, points)


def _thin_line(run: str, points: list[tuple[float, int]]) -> Iterator[TimelinePoint]:
    now = 0.0
    for seconds, live in downsample_timeline(points):
        now = max(now, seconds)
        yield TimelinePoint(run, now, live)
