"""The memory of a planned step as a snapshot that pytorch.org/memory_viz opens.

The document is that of `torch.cuda.memory._snapshot`: device 0 has the predicted blocks, device 1
what was measured, whose blocks are the rises of the measured line.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

from tightfit.schemas.actions import Compute, ComputeLoss, WriteBuffer
from tightfit.schemas.graph.training_graph import NO_VALUE, Graph, Op
from tightfit.schemas.measurement import TimelinePoint
from tightfit.schemas.schedule import ScheduleStep
from tightfit.stages.report.formatting import op_label
from tightfit.stages.simulate.effects import Effect, schedule_effects

PLANNED_RUN = "planned"
"""The name of the planned step among the measured lines."""
_FIRST_ADDRESS = 1 << 40
_ALIGNMENT = 512

SnapshotEvent = dict[str, Any]


def build_memory_snapshot(
    graph: Graph, steps: Sequence[ScheduleStep], ran: Sequence[TimelinePoint] = ()
) -> dict[str, Any]:
    """The document of a simulated schedule, to be pickled.

    The live bytes of device 0 are those of the schedule after each step, and its most are the
    predicted peak. Bytes that belong to no storage of the graph, such as an operator's workspace or
    the room of a loss, are blocks with a name of their own.

    Args:
        graph: The graph of the schedule.
        steps: The simulated steps; those of an offload target's memory are left out.
        ran: The measured memory lines of a step, if there are any.
    """
    traces = [_predicted_events(graph, steps)]
    measured = [point for point in ran if point.run == PLANNED_RUN]
    traces += [_measured_events(measured)] if measured else []
    return {"segments": [], "device_traces": traces, "external_annotations": []}


@dataclass
class _BlockTrace:
    """The events of blocks that are allocated and freed, at addresses that are used once."""

    events: list[SnapshotEvent] = field(default_factory=list)
    blocks: dict[object, SnapshotEvent] = field(default_factory=dict)
    live: int = 0
    next_address: int = _FIRST_ADDRESS
    now: int = 0

    def allocate(self, key: object, size: int, seconds: float, frame: dict[str, Any]) -> None:
        """A block that is live from now on."""
        if key in self.blocks or size <= 0:
            return
        event = self._event("alloc", self.next_address, size, seconds, frame)
        self.next_address += -(-size // _ALIGNMENT) * _ALIGNMENT
        self.blocks[key] = event
        self.live += size

    def free(self, key: object, seconds: float) -> None:
        """The end of a block, if it is live."""
        block = self.blocks.pop(key, None)
        if block is not None:
            self.live -= block["size"]
            at = block["addr"], block["size"], seconds
            self._event("free_completed", *at, block["frames"][0])

    def _event(
        self, action: str, address: int, size: int, seconds: float, frame: dict[str, Any]
    ) -> SnapshotEvent:
        event = {"action": action, "addr": address, "size": size, "stream": 0, "frames": [frame]}
        # A transfer may begin later than what follows it in the order of issue.
        self.now = max(self.now, round(seconds * 1e6))
        self.events.append({**event, "time_us": self.now})
        return event


def _predicted_events(graph: Graph, steps: Sequence[ScheduleStep]) -> list[SnapshotEvent]:
    trace, baseline = _BlockTrace(), graph.baseline_storages()
    own = next((step.memory for step in steps if isinstance(step.action, ComputeLoss)), "")
    for effect in schedule_effects(graph, steps):
        if effect.step.memory != own:
            continue
        _add_step(trace, graph, effect, baseline)
    for key in [*trace.blocks]:
        trace.free(key, max(step.end for step in steps))
    return trace.events


def _add_step(trace: _BlockTrace, graph: Graph, effect: Effect, baseline: Collection[int]) -> None:
    """The blocks of one step: the storages that it makes and drops, the most that it takes while it
    runs, and what else is live when it has ended."""
    step, frame = effect.step, _op_frame(effect.op, effect.repeated)
    if isinstance(step.action, Compute | WriteBuffer) and step.action.in_place != NO_VALUE:
        trace.free(graph.values[step.action.in_place].storage, step.start)
    made = [graph.values[value].storage for value in (*effect.makes, *effect.returns)]
    for storage in made:
        if storage in baseline:
            continue
        trace.allocate(storage, graph.storages[storage], step.start, frame)
    workspace = "workspace", effect.position
    trace.allocate(workspace, step.peak - trace.live, step.start, _named_frame("workspace", frame))
    trace.free(workspace, step.end)
    for storage in effect.drops:
        # A gradient that is handed over stays live as `.grad`.
        if trace.live > step.live:
            trace.free(storage, step.end)
    others: list[object] = [key for key in trace.blocks if isinstance(key, tuple)]
    others += made  # an output that nothing reads is gone when its operator has ended
    while trace.live > step.live and others:
        trace.free(others.pop(), step.end)
    named = _named_frame("held beside the storages", frame)
    trace.allocate(("beside", effect.position), step.live - trace.live, step.end, named)


def _op_frame(op: Op | None, repeated: bool) -> dict[str, Any]:
    if op is None:
        return {"name": "step", "filename": "", "line": 0}
    file, _, line = op.source.rpartition(":")
    again = " (recomputed)" if repeated else ""
    number = int(line) if line.isdigit() else 0
    return {"name": f"{op_label(op)}{again}", "filename": file, "line": number}


def _named_frame(name: str, frame: dict[str, Any]) -> dict[str, Any]:
    return {**frame, "name": f"{name} of {frame['name']}"}


def _measured_events(line: Sequence[TimelinePoint]) -> list[SnapshotEvent]:
    """A line of live bytes as blocks: each rise is one, and falls end the last ones."""
    trace = _BlockTrace()
    frame = {"name": "measured", "filename": "", "line": 0}
    order = list[object]()
    for number, point in enumerate(sorted(line, key=lambda each: each.seconds)):
        while order and trace.live > point.live:
            trace.free(order.pop(), point.seconds)
        if point.live > trace.live:
            order.append(number)
            trace.allocate(number, point.live - trace.live, point.seconds, frame)
    return trace.events
