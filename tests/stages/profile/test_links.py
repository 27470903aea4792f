"""The link to the slow memory: what is measured of it, and the machine that describes it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from schemas.link import host_link
from schemas.machine import read_machine
from schemas.updates import LinkSpeed
from stages.__main__ import main
from stages.profile.links import machine_of, measure_link, speed_of


def test_all_figures_are_measured(tmp_path: Path) -> None:
    speed = measure_link("cpu", str(tmp_path), 8 << 20)
    assert min(speed.to, speed.back, *speed.both, speed.latency) > 0
    assert max(speed.both) <= max(speed.to, speed.back)
    assert not list(tmp_path.iterdir())


def test_ways_that_take_turns_share_the_bandwidth() -> None:
    own = machine_of("cpu", LinkSpeed(4e9, 6e9, (2e9, 3e9), 1e-5), None)["links"][0]
    assert own["shared"] and own["bandwidth"] == 4_000_000_000
    own = machine_of("cpu", LinkSpeed(4e9, 6e9, (3.5e9, 6e9), 1e-5), None)["links"][0]
    assert not own["shared"] and own["bandwidth"] == 3_500_000_000


def test_neither_way_is_faster_beside_the_other_one_than_alone() -> None:
    noisy = speed_of(8_000, to=2.0, back=4.0, both=3.0, latency=0.0)
    assert noisy == LinkSpeed(4000.0, 2000.0, (4000.0, 2000.0), 0.0)
    assert machine_of("cpu", noisy, None)["links"][0]["bandwidth"] == 2000
    slowed = speed_of(8_000, to=2.0, back=4.0, both=5.0, latency=0.0)
    assert slowed == LinkSpeed(4000.0, 2000.0, (3200.0, 1600.0), 0.0)


def test_the_command_writes_a_machine_that_plans_take(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "machine.json"
    assert main(["machine", "--disk", str(tmp_path), "--size", "8", "--out", str(path)]) == 0
    assert capsys.readouterr().out.startswith("cpu to disk: ")
    found = host_link(read_machine(path), path)
    assert (found.device, found.to) == ("cpu", "disk") and found.bandwidth > 0
    assert "both at once" in json.loads(path.read_text())["sources"]["links"]


@pytest.mark.parametrize(
    ("words", "said"),
    [(["--disk", "/nowhere"], "files of /nowhere"), (["--size", "0"], "--size 0: expected MiB")],
)
def test_what_cannot_be_measured(
    words: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["machine", *words, "--out", str(tmp_path / "machine.json")]) == 1
    assert said in capsys.readouterr().err and not list(tmp_path.iterdir())
