"""The trace against the rules of the Trace Event Format."""

from __future__ import annotations

import json

import pytest

from tests.stages.report.cases import keep_all, played, run_again, small_costs, small_graph
from tightfit.schemas.actions import Compute, ComputeLoss, Free
from tightfit.stages.report.perfetto import build_trace

GRAPH = small_graph()
COSTS = small_costs(GRAPH)
AGAIN = played(GRAPH, COSTS, run_again(GRAPH))


@pytest.fixture(scope="module")
def document() -> dict:
    return json.loads(json.dumps(build_trace(GRAPH, AGAIN.steps), allow_nan=False))


def of_kind(document: dict, kind: str) -> list[dict]:
    return [event for event in document["traceEvents"] if event["ph"] == kind]


def test_every_event_has_what_the_format_asks(document: dict) -> None:
    for event in document["traceEvents"]:
        assert event["ph"] in ("X", "C", "i", "M")
        assert isinstance(event["name"], str) and event["name"]
        assert isinstance(event["pid"], int) and isinstance(event["tid"], int)
        assert isinstance(event["ts"], int | float) and event["ts"] >= 0
        if event["ph"] == "X":
            assert event["dur"] >= 0 and isinstance(event["cat"], str)
        if event["ph"] == "i":
            assert event["s"] in ("g", "p", "t")
        if event["ph"] == "C":
            assert all(isinstance(value, int | float) for value in event["args"].values())
        if event["ph"] == "M":
            assert event["name"] in ("process_name", "thread_name", "thread_sort_index")


def test_times_rise(document: dict) -> None:
    times = [event["ts"] for event in document["traceEvents"]]
    assert times == sorted(times)


def test_complete_events_of_a_stream_do_not_overlap(document: dict) -> None:
    streams: dict[int, float] = {}
    for event in of_kind(document, "X"):
        assert event["ts"] >= streams.get(event["tid"], 0.0) - 1e-6
        streams[event["tid"]] = event["ts"] + event["dur"]
    assert len(streams) == 2


def test_streams_and_process_are_named(document: dict) -> None:
    named = {event["tid"]: event["args"]["name"] for event in of_kind(document, "M")
             if event["name"] == "thread_name"}  # fmt: skip
    assert sorted(named.values()) == ["cpu/compute", "phases"]
    used = {event["tid"] for event in of_kind(document, "X")}
    assert used <= named.keys()


def test_phases_cover_the_step(document: dict) -> None:
    phases = [event for event in of_kind(document, "X") if event["cat"] == "phase"]
    assert [event["name"] for event in phases] == ["forward", "loss", "backward"]
    assert phases[0]["ts"] == 0
    assert phases[-1]["ts"] + phases[-1]["dur"] == pytest.approx(AGAIN.seconds * 1e6, abs=0.01)


def test_ops_carry_their_origin_and_repeats_their_category(document: dict) -> None:
    ops = [event for event in of_kind(document, "X") if event["cat"] != "phase"]
    assert len(ops) == sum(isinstance(step.action, Compute | ComputeLoss) for step in AGAIN.steps)
    assert {event["args"]["module"] for event in ops if event["name"] == "gelu"} == {
        "h.0.act",
        "h.1.act",
        "h.2.act",
    }
    assert sum(event["cat"] == "recomputation" for event in ops) == AGAIN.repeated == 2


def test_the_counter_shows_the_peak_and_ends_with_what_is_live(document: dict) -> None:
    counts = of_kind(document, "C")
    assert {event["name"] for event in counts} == {"cpu/memory"}
    assert max(event["args"]["bytes"] for event in counts) == AGAIN.peak
    assert counts[-1]["args"]["bytes"] == AGAIN.steps[-1].live


def test_frees_and_gradients_are_instants(document: dict) -> None:
    names = [event["name"] for event in of_kind(document, "i")]
    assert names.count("free") == sum(isinstance(step.action, Free) for step in AGAIN.steps)
    assert names.count("gradient handed over") == 3


def test_a_schedule_that_repeats_nothing_has_no_such_category() -> None:
    simulated = played(GRAPH, COSTS, keep_all(GRAPH))
    events = build_trace(GRAPH, simulated.steps)["traceEvents"]
    assert "recomputation" not in {event.get("cat") for event in events}
