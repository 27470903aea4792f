"""Snapshots of planned memory, as PyTorch's own reader takes them."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from torch.cuda import _memory_viz as memory_viz

from tests.stages.report.cases import keep_all, played, run_again, small_costs, small_graph
from tightfit.__main__ import main
from tightfit.schemas.graph.training_graph import write_graph
from tightfit.schemas.measurement import TimelinePoint, write_memory_timeline
from tightfit.schemas.schedule import write_schedule
from tightfit.stages.report.memory_snapshot import SnapshotEvent, build_memory_snapshot

GRAPH = small_graph()
COSTS = small_costs(GRAPH)
SCHEDULES = {"keep_all": keep_all(GRAPH), "recompute": run_again(GRAPH)}


def live_bytes(events: Sequence[SnapshotEvent]) -> Iterator[int]:
    """The bytes that are live after each event of a device."""
    live = 0
    for event in events:
        live += event["size"] if event["action"] == "alloc" else -event["size"]
        yield live


@pytest.mark.parametrize("name", SCHEDULES)
def test_live_bytes_are_those_of_the_schedule(name: str) -> None:
    simulated = played(GRAPH, COSTS, SCHEDULES[name])
    (events,) = build_memory_snapshot(GRAPH, simulated.steps)["device_traces"]
    live = [*live_bytes(events)]
    assert max(live) == simulated.peak == max(step.peak for step in simulated.steps)
    assert live[-1] == 0 and min(live) == 0
    freed = [event["addr"] for event in events if event["action"] == "free_completed"]
    taken = [event["addr"] for event in events if event["action"] == "alloc"]
    assert sorted(freed) == sorted(taken) and len({*taken}) == len(taken)
    names = {event["frames"][0]["name"] for event in events}
    assert any("(recomputed)" in name for name in names) == (name == "recompute")


def test_the_command_writes_what_pytorch_reads(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    simulated = played(GRAPH, COSTS, SCHEDULES["recompute"])
    graph, schedule, line = (
        tmp_path / name for name in ("graph.arrow", "schedule.arrow", "line.arrow")
    )
    digest = write_graph(graph, GRAPH)
    write_schedule(schedule, simulated.steps, digest)
    points = [(0.0, 10), (0.1, 50), (0.2, 30), (0.3, 40), (0.4, 0)]
    write_memory_timeline(line, [TimelinePoint("planned", *point) for point in points])
    out, other = tmp_path / "memory.pickle", tmp_path / "other.arrow"
    write_graph(other, replace(GRAPH, model="other"))
    command = ["report", "--memory-snapshot", str(schedule), "--graph", str(other)]
    assert main([*command, "--out", str(out)]) == 1 and not out.exists()
    assert "is the schedule of another graph than" in capsys.readouterr().err
    words = ["report", "--memory-snapshot", str(schedule), "--graph", str(graph)]
    assert main([*words, "--timeline", str(line), "--out", str(out)]) == 0
    document = pickle.loads(out.read_bytes())
    measured = document["device_traces"][1]
    assert max(live_bytes(measured)) == 50
    assert "# free completed for" in memory_viz.trace(document)
    assert "MemoryViz" in memory_viz.trace_plot(document)
