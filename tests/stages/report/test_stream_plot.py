"""The streams of a whole step on its page and in its trace: updates, states on their way, waits."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.stages.report.cases import keep_all, played, small_costs, small_graph, write_results
from tightfit.__main__ import main
from tightfit.schemas.actions import (
    Action,
    Compute,
    Free,
    FreeHostCopy,
    Offload,
    PassGradient,
    Prefetch,
    UpdateOnHost,
    Wait,
)
from tightfit.schemas.link import HostLink
from tightfit.schemas.measurement import TimelinePoint, write_memory_timeline
from tightfit.schemas.optimizer_plan import LinkSpeed, OptimizerPlan, ParameterUpdateCost
from tightfit.schemas.schedule import ScheduleStep, write_schedule
from tightfit.stages.combine.optimizer_offload.optimizer_in_backward import add_updates_in_backward
from tightfit.stages.report.memory_timeline import build_timeline
from tightfit.stages.report.stream_plot import measured_stream_spans, plot_streams
from tightfit.stages.simulate.simulate import SimulationResult, simulate

GRAPH = small_graph()
COSTS = small_costs(GRAPH)
LINK = HostLink(5e8, 0.0, False, device="cpu")
LAST = GRAPH.gradients[0].value
OWN = {gradient.value: gradient.gradient for gradient in GRAPH.gradients}


def updates() -> OptimizerPlan:
    """All states are in the offload target, and so is the last layer's parameter."""
    cost = ParameterUpdateCost("", (250_000, 250_000), 0.002, 0, 0, (0, 0), host_seconds=0.003)
    costs = {gradient.value: cost for gradient in GRAPH.gradients}
    return OptimizerPlan(costs, LinkSpeed.of(LINK), 2, offloaded=frozenset([LAST]))


def whole() -> SimulationResult:
    """The step that keeps everything, with all updates."""
    steps = played(GRAPH, COSTS, keep_all(GRAPH)).steps
    rest = {value: cost for value, cost in updates().costs.items() if value != LAST}
    steps = add_updates_in_backward(GRAPH, [ScheduleStep(step.action) for step in steps], rest)
    uses = [i for i, s in enumerate(steps) if _reads(s, LAST)]
    sent = next(i for i, s in enumerate(steps) if s.action == PassGradient(OWN[LAST])) + 1
    ended: list[Action] = [
        Free(LAST),
        Offload(OWN[LAST]),
        Wait(OWN[LAST]),
        Free(OWN[LAST]),
        UpdateOnHost(LAST),
    ]
    steps[sent:sent] = [ScheduleStep(action) for action in ended]
    steps[uses[0] : uses[0]] = [ScheduleStep(Prefetch(LAST)), ScheduleStep(Wait(LAST))]
    steps += [ScheduleStep(Wait(OWN[LAST])), ScheduleStep(FreeHostCopy(OWN[LAST]))]
    return simulate(GRAPH, COSTS, steps, link=LINK, updates=updates())


def _reads(step: ScheduleStep, value: int) -> bool:
    return isinstance(step.action, Compute) and value in GRAPH.ops[step.action.op].inputs


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run") / "small"
    write_results(folder, GRAPH)
    place = folder / "rockmate/90pct/schedule.arrow"
    write_schedule(place, whole().steps, "", LINK, updates())
    return folder


def test_each_stream_has_its_spans_and_the_other_memory_its_line() -> None:
    found = whole()
    plot = plot_streams(found.steps, found.passing, updates().host_bytes(GRAPH))
    assert plot is not None
    names = {stream.name: {mark.kind for mark in stream.marks} for stream in plot.streams}
    assert names == {
        "cpu/compute": {"computing", "updating", "waiting"},
        "cpu/to-host": {"moving", "passing"},
        "cpu/from-host": {"moving", "passing"},
        "host/compute": {"updating"},
    }
    own = 250_000 * (1 + 2 * 3)
    assert plot.line.count("V") == 2
    assert (plot.other, plot.peak) == ("host/memory", own + 250_000)
    assert all(0 < stream.busy <= 100 for stream in plot.streams)
    assert plot_streams(played(GRAPH, COSTS, keep_all(GRAPH)).steps) is None


def test_parameters_that_are_brought_have_an_owner() -> None:
    found = whole()
    line = build_timeline(GRAPH, found.steps, updates=updates())
    assert line.peak == found.peak
    assert max(segment.bytes[2] for segment in line.segments) == 250_000


def test_the_page_and_the_trace_show_them(results: Path, tmp_path: Path) -> None:
    assert main(["report", "--model-dir", str(results), "--out", str(tmp_path / "page.html")]) == 0
    page = (tmp_path / "page.html").read_text()
    assert "host/compute" in page and "states on their way" in page
    assert page.count("parameters from the offload target") >= 2 and "bytes in host/memory" in page
    trace = tmp_path / "trace.json"
    given = ["--graph", str(results / "graph.arrow"), "--costs", str(results / "costs.arrow")]
    schedule = str(results / "rockmate/90pct/schedule.arrow")
    assert main(["report", "--perfetto", schedule, *given, "--out", str(trace)]) == 0
    events = json.loads(trace.read_text())["traceEvents"]
    spans = {event["name"] for event in events if event["ph"] == "X"}
    assert {"update_on_device", "update_on_host", "states", "prefetch", "wait"} <= spans
    assert {event["name"] for event in events if event["ph"] == "C"} == {
        "cpu/memory",
        "host/memory",
    }


RAN = [
    *(
        TimelinePoint("planned", when, live)
        for when, live in ((0.0, 0), (0.004, 900_000), (0.02, 0))
    ),
    *(
        TimelinePoint("offloaded", when, live)
        for when, live in ((0.0, 0), (0.002, 250_000), (0.018, 0))
    ),
    *(TimelinePoint("offload", when, live) for when, live in ((0.002, 250_000), (0.006, 0))),
    *(TimelinePoint("prefetch", when, live) for when, live in ((0.01, 250_000), (0.015, 0))),
    *(TimelinePoint("wait", when, live) for when, live in ((0.012, 250_000), (0.015, 0))),
]


def test_measured_streams_stand_beside_the_predicted_ones() -> None:
    steps = whole().steps
    found = measured_stream_spans(steps, RAN, 0.02)
    assert found == {
        "cpu/compute, measured": {
            "computing": [(0.0, 0.012), (0.015, 0.02)],
            "waiting": [(0.012, 0.015)],
        },
        "cpu/to-host, measured": {"moving": [(0.002, 0.006)]},
        "cpu/from-host, measured": {"moving": [(0.01, 0.015)]},
    }
    plot = plot_streams(steps, ran=RAN, took=0.02)
    assert plot is not None and plot.ran_peak == 250_000 and plot.ran
    assert [stream.name for stream in plot.streams][-3:] == list(found)
    assert measured_stream_spans(steps, RAN[:3], 0.02) == {}


def test_the_page_and_the_trace_show_what_was_measured(results: Path, tmp_path: Path) -> None:
    place = results / "rockmate/90pct"
    write_schedule(place / "schedule.arrow", whole().steps, "", LINK)
    write_memory_timeline(place / "memory_timeline.arrow", RAN)
    try:
        page, trace = tmp_path / "page.html", tmp_path / "trace.json"
        assert main(["report", "--model-dir", str(results), "--out", str(page)]) == 0
        assert "cpu/from-host, measured" in page.read_text()
        assert "time of all streams, predicted and measured" in page.read_text()
        files = [
            "--graph",
            str(results / "graph.arrow"),
            "--timeline",
            str(place / "memory_timeline.arrow"),
        ]
        words = ["report", "--perfetto", str(place / "schedule.arrow"), *files]
        assert main([*words, "--out", str(trace)]) == 0
    finally:
        (place / "memory_timeline.arrow").unlink()
        write_schedule(place / "schedule.arrow", whole().steps, "", LINK, updates())
    events = [event for event in json.loads(trace.read_text())["traceEvents"] if event["pid"] == 2]
    assert {event["args"]["name"] for event in events if event["ph"] == "M"} == {
        "measured",
        "cpu/compute, measured",
        "cpu/to-host, measured",
        "cpu/from-host, measured",
    }
    counted = {event["name"] for event in events if event["ph"] == "C"}
    assert counted == {"cpu/memory, measured", "host/memory, measured"}
    waits = [event for event in events if event["name"] == "waiting"]
    assert [(event["ts"], event["dur"]) for event in waits] == [(12_000.0, 3_000.0)]
