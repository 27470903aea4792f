"""What a planned module sends to another memory: as its runs count it, and as its plan says."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from torch import nn

from tightfit.schemas.graph import Graph
from tightfit.schemas.measurement import LinePoint, Measurement, thin
from tightfit.schemas.plan import Transfers
from tightfit.schemas.words import duration
from tightfit.stages.device.devices import kept_random_states
from tightfit.stages.device.factory import Built
from tightfit.stages.validate.comparison import copied, quick_collections
from tightfit.stages.validate.contents import own_copy
from tightfit.stages.validate.step import Stepper, forget_gradients

LANES = ("leaving", "returning")
"""The lines of the lanes, in the order of what a run counts."""


def slow_memory_of(device: str) -> str:
    """The name of the memory that a device sends to."""
    return "disk" if device == "cpu" else "host"


def last_moved(planned: nn.Module) -> Any:
    """What the run of a planned module has moved that began last, None where it sends nothing."""
    sending = getattr(planned, "_tightfit_sending", None)
    return None if sending is None else sending.last


def check_sent(
    graph: Graph, built: Built, planned: nn.Module, foretold: Transfers | None
) -> tuple[str, str]:
    """Takes two steps of a copy of a planned module: what is wrong with what the second one sends,
    and what is to be said of it, "" for nothing. Model, samples and random numbers stay as they
    were."""
    if foretold is None and getattr(planned, "_tightfit_sending", None) is None:
        return "", ""
    stepper, twin, sample = Stepper.of(graph, built), copied(planned), own_copy(built.samples[0])
    with kept_random_states(), quick_collections():
        for _ in range(2):
            stepper.run(twin, sample)
            forget_gradients(twin, sample)
    moved, memory = last_moved(twin), slow_memory_of(graph.device)
    if said := complaint_of(foretold, memory, moved):
        return said, ""
    return "", "" if foretold is None else words_of(foretold, memory, moved.waited)


def complaint_of(foretold: Transfers | None, memory: str, moved: Any) -> str:
    """What a run moved otherwise than the plan says, "" where it did as it says."""
    nothing = Transfers(0, 0, 0, 0.0)
    said, did = foretold or nothing, nothing
    if moved is not None:
        did = Transfers(moved.left, moved.returned, moved.peak, 0.0)
    for which, found, wanted in (
        (f"the {memory} has", did.host_peak, said.host_peak),
        (f"a step sends to the {memory}", did.left, said.left),
        (f"a step brings back from the {memory}", did.returned, said.returned),
    ):
        if found != wanted:
            return f"{which} {found} bytes where {wanted} were predicted"
    return ""


def words_of(foretold: Transfers, memory: str, waited: float) -> str:
    """What is to be said of a step that sends as it was predicted."""
    return (
        f"measured, a step has {foretold.host_peak:,} bytes in the {memory} at most, as predicted, "
        f"and waits for {duration(waited)} where {duration(foretold.waited)} were predicted"
    )


def with_sent(
    measured: Measurement, foretold: Transfers | None, moved: Any, waited: float | None
) -> Measurement:
    """A measurement with the bytes in the other memory and the time that was waited."""
    if foretold is None and moved is None:
        return measured
    return replace(
        measured,
        slow_memory=slow_memory_of(measured.device),
        predicted_slow=0 if foretold is None else foretold.host_peak,
        slow_peak=0 if moved is None else moved.peak,
        waited=waited,
    )


def lines_of(moved: Any) -> Iterator[LinePoint]:
    """The lines of what a run moved: the bytes in the other memory, those on their way in each
    lane, and when it waited."""
    if moved is None:
        return
    levels = [(moved.since(moment), there) for moment, there in moved.line]
    yield from _line("slow", [(0.0, 0), *levels])
    for name, spans in zip((*LANES, "waiting"), (*moved.lanes, moved.waits), strict=True):
        points = [
            point
            for begin, end, size in spans
            for point in ((moved.since(begin), size), (moved.since(end), 0))
        ]
        yield from _line(name, points)


def _line(run: str, points: list[tuple[float, int]]) -> Iterator[LinePoint]:
    now = 0.0
    for seconds, live in thin(points):
        now = max(now, seconds)
        yield LinePoint(run, now, live)
