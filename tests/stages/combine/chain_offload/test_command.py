"""`chain` with a link to the host, by its files, and what an audit says of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.stages.combine.chain.test_command import layers
from tightfit.__main__ import main
from tightfit.schemas.chain import read_chain, write_chain
from tightfit.schemas.link import HostLink
from tightfit.schemas.operation_timeline import (
    TimedOperation,
    read_operation_timeline,
    write_operation_timeline,
)
from tightfit.schemas.plan import read_plan, write_plan
from tightfit.schemas.sequence import read_sequence, write_sequence
from tightfit.schemas.store import read_header
from tightfit.stages.combine.chain.options import build_chain_problem
from tightfit.stages.combine.chain_offload.planner import load_planner
from tightfit.stages.combine.chain_offload.simulate import simulate_chain_offload
from tightfit.util.strategies import OFFLOADERS

BANDWIDTH = 700_000
LINK = {"between": ["cuda:0", "host"], "bandwidth": BANDWIDTH, "latency": 0.01, "shared": False}
PAGE = Path(__file__).parents[4] / "docs/offload.md"


def machine(folder: Path, **changed: Any) -> Path:
    """A device with a host; `changed` are keys of the file, None for none."""
    document = {
        "artifact": "tightfit.machine/1",
        "name": "a device",
        "devices": [{"name": "cuda:0", "memory": 10**9}],
        "memories": [{"name": "host", "memory": 10**9}],
        "links": [LINK],
    }
    given = {key: cell for key, cell in {**document, **changed}.items() if cell is not None}
    (folder / "machine.json").write_text(json.dumps(given))
    return folder / "machine.json"


def plan(folder: Path, strategy: str, budget: str, *more: str, **changed: Any) -> int:
    """The exit code; the chain has twelve layers."""
    if not (folder / "chain.arrow").exists():
        write_chain(folder / "chain.arrow", layers(12))
    given = ["--chain", str(folder / "chain.arrow"), "--strategy", strategy]
    given += ["--machine", str(machine(folder, **changed)), "--out", str(folder / "out")]
    return main(["chain", *given, "--budget", budget, *more])


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", OFFLOADERS)
def test_a_plan_is_written_as_it_is_simulated(name: str, tmp_path: Path) -> None:
    assert load_planner(name).about is OFFLOADERS[name]
    assert plan(tmp_path, name, "60%") == 0
    made, out = read_plan(tmp_path / "out" / "plan.json"), tmp_path / "out"
    sequence, streams = (
        read_sequence(out / "sequence.arrow"),
        read_operation_timeline(out / "streams.arrow"),
    )
    link = HostLink(BANDWIDTH, 0.01, False, 10**9)
    played = simulate_chain_offload(
        build_chain_problem(read_chain(tmp_path / "chain.arrow")), link, sequence
    )
    assert played.steps == streams
    assert (made.time, made.peak, made.recomputed) == (
        played.seconds,
        played.peak,
        played.recomputed,
    )
    assert made.peak is not None and made.budget_bytes is not None
    assert made.peak <= made.budget_bytes < made.keep_all.peak
    assert made.status == "feasible" and made.lower_bound is not None and made.time is not None
    assert made.keep_all.time <= made.lower_bound <= made.time
    assert made.gap == pytest.approx(1 - made.lower_bound / made.time)
    moved = made.transfers
    assert moved is not None and (moved.offloaded_bytes, moved.wait_seconds) == (
        played.left,
        played.waited,
    )
    assert moved.host_peak <= moved.offloaded_bytes == moved.prefetched_bytes
    assert moved.offloaded_bytes > 0 or name == "opportunist"
    ways = ("compute", "to-host", "from-host") if moved.offloaded_bytes else ("compute",)
    assert {step.stream for step in streams} == {f"cuda:0/{way}" for way in ways}
    assert main(["audit", str(out)]) == 0


def test_min_is_the_smallest_budget_known_to_work(tmp_path: Path) -> None:
    assert plan(tmp_path, "pofo", "1kB") == 0
    smallest = read_plan(tmp_path / "out" / "plan.json").smallest_budget
    assert plan(tmp_path, "pofo", "min") == 0
    least = read_plan(tmp_path / "out" / "plan.json")
    assert least.feasible and least.budget_total == smallest
    assert least.peak is not None and smallest is not None and least.peak <= smallest


def test_the_same_files_make_the_same_bytes(tmp_path: Path) -> None:
    files = []
    for _ in range(2):
        assert plan(tmp_path, "pofo", "50%") == 0
        names = ("plan.json", "streams.arrow", "sequence.arrow")
        files.append([(tmp_path / "out" / name).read_bytes() for name in names])
    assert files[0] == files[1]


def test_room_enough_moves_nothing(tmp_path: Path) -> None:
    assert plan(tmp_path, "offload_greedy", "100%") == 0
    made = read_plan(tmp_path / "out" / "plan.json")
    assert (made.status, made.gap) == ("optimal", 0.0)
    assert made.transfers is not None and made.transfers.offloaded_bytes == 0


@pytest.mark.parametrize(
    ("name", "budget", "changed", "sentence"),
    [
        ("pofo", "1MB", {}, " alone needs "),
        ("offload_dynprog", "1MB", {}, " alone needs "),
        ("pofo", "5MB", {"links": [{**LINK, "bandwidth": 0}]}, "the link has no bandwidth"),
        ("offload_greedy", "50%", {"links": [{**LINK, "bandwidth": 0}]}, "has no bandwidth"),
        (
            "offload_greedy",
            "50%",
            {"memories": [{"name": "host", "memory": 1000}]},
            "does not fit the 1,000 bytes of the host",
        ),
    ],
)
def test_what_does_not_fit_is_told_by_name(
    name: str,
    budget: str,
    changed: dict,
    sentence: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert plan(tmp_path, name, budget, **changed) == 0
    made = read_plan(tmp_path / "out" / "plan.json")
    assert capsys.readouterr().out == f"infeasible: {made.message}\n"
    assert made.status == "infeasible" and sentence in made.message
    assert f"{made.smallest_budget:,} bytes" in made.message
    assert read_operation_timeline(tmp_path / "out" / "streams.arrow") == []
    assert plan(tmp_path, name, str(made.smallest_budget), **changed) == 0
    assert read_plan(tmp_path / "out" / "plan.json").status != "infeasible"
    assert main(["audit", str(tmp_path / "out")]) == 0


@pytest.mark.parametrize(
    ("name", "more", "changed", "sentence"),
    [
        ("pofo", ["--period", "3"], {}, "takes no --period"),
        ("pofo", ["--k", "2"], {}, "takes no --k"),
        ("pofo", ["--stage-recompute", "rotor"], {}, "takes no --stage-recompute"),
        ("pofo", ["--solver", "cbc"], {}, "takes no --solver"),
        ("pofo", ["--slots", "0"], {}, "--slots 0: expected 1 or more"),
        ("pofo", ["--chain", "other.arrow"], {}, "plans one chain, and no join"),
        ("pofo", ["--budget", "2GB"], {}, "cuda:0 has 1,000,000,000"),
        ("pofo", [], {"memories": None, "links": None}, "names no memory 'host'"),
        ("pofo", [], {"links": None}, "no link between cuda:0 and host"),
        ("pofo", [], {"links": [LINK, LINK]}, "several links between cuda:0 and host"),
        ("pofo", [], {"links": [{**LINK, "bandwidth": -1}]}, "links[0].bandwidth is -1"),
        (
            "pofo",
            [],
            {"devices": [{"name": f"cuda:{n}", "memory": 10**9} for n in (0, 1)]},
            "describes 2 devices",
        ),
    ],
)
def test_bad_input_is_one_sentence(
    name: str,
    more: list[str],
    changed: dict,
    sentence: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert plan(tmp_path, name, "50%", *more, **changed) == 1
    told = capsys.readouterr().err.strip()
    assert sentence in told and len(told.splitlines()) == 1
    assert not (tmp_path / "out").exists()


def test_a_link_needs_its_machine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_chain(tmp_path / "chain.arrow", layers(3))
    given = ["--chain", str(tmp_path / "chain.arrow"), "--out", str(tmp_path / "out")]
    assert main(["chain", *given, "--strategy", "pofo", "--budget", "50%"]) == 1
    assert "chain --strategy pofo needs --machine" in capsys.readouterr().err


Doctor = Callable[[list[TimedOperation]], list[TimedOperation]]


def first(steps: list[TimedOperation], action: str) -> int:
    """The first step of that action."""
    return next(i for i, step in enumerate(steps) if step.operation.action == action)


def changed(action: str, **figures: Any) -> Doctor:
    """The first such step with other figures, which functions make of the step."""

    def doctor(steps: list[TimedOperation]) -> list[TimedOperation]:
        at = first(steps, action)
        new = {name: make(steps[at]) for name, make in figures.items()}
        return [*steps[:at], replace(steps[at], **new), *steps[at + 1 :]]

    return doctor


@pytest.mark.parametrize(
    ("doctor", "sentence"),
    [
        (changed("F_all", stream=lambda s: "cuda:0/to-host"), "not in compute"),
        (changed("prefetch_all", start=lambda s: 0.0), "begins before"),
        (changed("prefetch_all", live=lambda s: s.live + 1), "bytes where"),
        (changed("free_all", live=lambda s: s.live + 1), "bytes where"),
        (changed("free_all", end=lambda s: s.start), "frees what is still on its way"),
        (changed("offload_all", live=lambda s: s.live + 1), "changes the memory of the device"),
        (changed("B", host_bytes=lambda s: s.host_bytes + 1), "bytes to the host"),
        (lambda steps: steps[:-1], "has other operations than sequence.arrow"),
        (changed("B", wait_seconds=lambda s: s.wait_seconds + 1), "where the streams come to"),
    ],
)
def test_doctored_streams_are_told(
    doctor: Doctor, sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert plan(tmp_path, "offload_greedy", "40%") == 0
    streams = tmp_path / "out" / "streams.arrow"
    digest = read_header(streams).metadata["chain"]
    write_operation_timeline(streams, doctor(read_operation_timeline(streams)), digest)
    assert main(["audit", str(tmp_path / "out")]) == 1
    assert sentence in capsys.readouterr().out


def test_doctored_plans_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert plan(tmp_path, "offload_greedy", "40%") == 0
    path, streams = tmp_path / "out" / "plan.json", tmp_path / "out" / "streams.arrow"
    made = read_plan(path)
    assert made.transfers is not None and made.time is not None
    for wrong, sentence in (
        (replace(made, time=made.time / 2), "time is"),
        (
            replace(made, transfers=replace(made.transfers, offloaded_bytes=1)),
            "offloaded_bytes is 1",
        ),
        (replace(made, transfers=None), "says nothing of the transfers"),
        (replace(made, peak=1), "peak is 1"),
    ):
        write_plan(path, wrong)
        assert main(["audit", str(tmp_path / "out")]) == 1
        assert sentence in capsys.readouterr().out
    write_plan(path, made)
    write_sequence(streams.with_name("sequence.arrow"), [], "another")
    assert main(["audit", str(tmp_path / "out")]) == 1
    assert "is of another chain than sequence.arrow" in capsys.readouterr().out
    streams.unlink()
    assert main(["audit", str(tmp_path / "out")]) == 1
    assert "there is no streams.arrow beside it" in capsys.readouterr().out


def test_the_readme_tells_of_all_planners() -> None:
    told = " ".join(PAGE.read_text().split())
    for name, about in OFFLOADERS.items():
        assert about.name == name
        assert f"- `{name}`: {about.summary}" in told
