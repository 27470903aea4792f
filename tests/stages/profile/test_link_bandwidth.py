"""The link to the offload target: what is measured of it, and the machine that describes it."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tightfit.__main__ import main
from tightfit.schemas.link import read_host_link, second_tier_link
from tightfit.schemas.machine import read_machine
from tightfit.schemas.measured_link import MeasuredLink, read_measured_link, write_measured_link
from tightfit.schemas.optimizer_plan import LinkSpeed
from tightfit.stages.profile import link_bandwidth, link_cache
from tightfit.stages.profile.link_bandwidth import (
    compute_link_speed,
    describe_machine,
    measure_link_speed,
    measure_offload_link,
    sample_link,
)
from tightfit.stages.profile.link_cache import cached_link, cached_machine, cached_second_tier_link
from tightfit.util.errors import ArtifactError, ConfigError


def test_all_figures_are_measured(tmp_path: Path) -> None:
    speed = measure_link_speed("cpu", str(tmp_path), 8 << 20)
    assert min(speed.to, speed.back, *speed.both, speed.latency) > 0
    assert max(speed.both) <= max(speed.to, speed.back)
    assert not list(tmp_path.iterdir())


def described(speed: LinkSpeed) -> dict[str, Any]:
    """The link in the description of a machine."""
    own: dict[str, Any] = describe_machine("cpu", MeasuredLink(speed, "disk", 1))["links"][0]
    return own


def test_ways_that_take_turns_share_the_bandwidth() -> None:
    own = described(LinkSpeed(4e9, 6e9, (2e9, 3e9), 1e-5))
    assert own["shared"] and own["bandwidth"] == 4_000_000_000
    own = described(LinkSpeed(4e9, 6e9, (3.5e9, 6e9), 1e-5))
    assert not own["shared"] and own["bandwidth"] == 3_500_000_000


def test_neither_way_is_faster_beside_the_other_one_than_alone() -> None:
    noisy = compute_link_speed(8_000, to=2.0, back=4.0, both=3.0, latency=0.0)
    assert noisy == LinkSpeed(4000.0, 2000.0, (4000.0, 2000.0), 0.0)
    assert described(noisy)["bandwidth"] == 2000
    slowed = compute_link_speed(8_000, to=2.0, back=4.0, both=5.0, latency=0.0)
    assert slowed == LinkSpeed(4000.0, 2000.0, (3200.0, 1600.0), 0.0)


def test_the_command_writes_a_machine_that_plans_take(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "machine.json"
    assert main(["machine", "--disk", str(tmp_path), "--size", "8MiB", "--out", str(path)]) == 0
    assert capsys.readouterr().out.startswith("cpu to disk: ")
    found = read_host_link(read_machine(path), path)
    assert (found.device, found.to) == ("cpu", "disk") and found.bandwidth > 0
    assert "both at once" in json.loads(path.read_text())["sources"]["links"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--disk", "/nowhere"], "files of /nowhere"),
        (["--size", "8"], "--size 8: expected from 1MiB"),
        (["--size", "5%"], "expected from 1MiB"),
        (["--size", "-5MiB"], "--size: '-5MiB' is no size"),
    ],
)
def test_what_cannot_be_measured(
    words: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["machine", *words, "--out", str(tmp_path / "machine.json")]) == 1
    assert said in capsys.readouterr().err and not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("free", "taken"), [(1 << 30, 128), (100, 48), (9, 8), (8, 8)], ids=lambda each: str(each)
)
def test_a_disk_with_little_room_is_measured_over_less(
    free: int, taken: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In MiB: as much as is asked for, or half of what there is."""
    made: list[int] = []

    def memory(device: Any, size: int, folder: str) -> Any:
        made.append(size >> 20)
        raise RuntimeError("enough")

    monkeypatch.setattr(link_bandwidth, "create_offload_target", memory)
    monkeypatch.setattr(shutil, "disk_usage", lambda place: SimpleNamespace(free=free << 20))
    with pytest.raises(ConfigError, match="enough"):
        cached_link(tmp_path, "cpu", tmp_path)
    assert made == [taken]


@pytest.mark.parametrize("kept", [True, False])
def test_a_disk_without_room_to_measure_is_told_in_bytes(
    kept: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    free = [7 << 20]
    monkeypatch.setattr(shutil, "disk_usage", lambda place: SimpleNamespace(free=free[0]))
    words = ["machine", "--disk", str(tmp_path), "--out", str(tmp_path / "machine.json")]
    words += ["--library", str(tmp_path)] if kept else []
    for more, needed in (([], 8 << 20), (["--size", "8MiB"], 16 << 20)):
        assert main([*words, *more]) == 1
        said = capsys.readouterr().err
        assert said.count("\n") == 1 and said.endswith(
            f"disk: the disk of {tmp_path} has {free[0]} bytes free, and to measure its link takes "
            f"{needed}: free some, or name another folder as disk\n"
        )
        free[0] = 15 << 20


WHEN = "2026-11-24 12:00 UTC"
SPEED = LinkSpeed(4e9, 6e9, (3.5e9, 6e9), 1e-5, 2e-5, 1e-10)


@pytest.fixture
def measuring(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The folders that were measured; each time the disk has another room."""
    found: list[str] = []

    def measured(device: str, folder: str | Path | None, size: int, exact: bool) -> MeasuredLink:
        found.append(str(folder))
        return MeasuredLink(SPEED, "disk", 1000 - len(found), str(folder), "", WHEN, 0.0, 5e9)

    monkeypatch.setattr(link_cache, "measure_offload_link", measured)
    monkeypatch.setattr(link_cache, "is_machine_idle", lambda: True)
    monkeypatch.setattr(link_cache, "has_disk_space", lambda place: True)
    monkeypatch.setattr(link_cache, "sample_link", lambda device, folder: 5e9)
    return found


@pytest.mark.parametrize(
    ("now", "quiet", "lost", "again"),
    [
        (9.9e9, True, 0.0, False),
        (10.1e9, True, 0.0, True),
        (2.6e9, True, 0.0, False),
        (2.4e9, True, 0.0, True),
        (1e6, False, 0.0, False),
        (5e9, True, 0.3, False),
        (5e9, True, 0.1, False),
    ],
)
def test_a_kept_link_is_measured_again_where_something_contradicts_it(
    now: float,
    quiet: bool,
    lost: float,
    again: bool,
    tmp_path: Path,
    measuring: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cached_link(tmp_path / "store", "cpu", tmp_path)
    [path] = (tmp_path / "store/profile").glob("*.link-3.json")
    write_measured_link(path, replace(read_measured_link(path), lost=lost))
    monkeypatch.setattr(link_cache, "is_machine_idle", lambda: quiet)
    monkeypatch.setattr(link_cache, "sample_link", lambda device, folder: now)
    found = cached_link(tmp_path / "store", "cpu", tmp_path)
    assert len(measuring) == 1 + again
    assert (found.lost == lost) != (again and lost > 0)
    assert WHEN in found.said and ("other work" in found.said) == (found.lost >= 0.2)


def test_a_link_is_known_again_by_a_few_transfers(tmp_path: Path) -> None:
    kept = measure_offload_link("cpu", tmp_path, 8 << 20)
    assert kept.sample > 0 and 0 <= kept.lost <= 1 and kept.when.endswith(" UTC")
    assert sample_link("cpu", tmp_path) > 0 and not list(tmp_path.iterdir())


def test_a_link_is_measured_once_for_each_folder_and_store(
    tmp_path: Path, measuring: list[str]
) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    first = cached_link(tmp_path / "store", "cpu", one)
    assert cached_link(tmp_path / "store", "cpu", one) == first and measuring == [str(one)]
    assert cached_link(tmp_path / "store", "cpu", other).folder == str(other)
    assert cached_link(tmp_path / "elsewhere", "cpu", one).room < first.room
    assert cached_link(tmp_path / "store", "cpu", one, again=True).room == 1000 - len(measuring)
    assert len(measuring) == 4


def test_the_machine_of_a_kept_link_is_the_same_file_each_time(
    tmp_path: Path, measuring: list[str]
) -> None:
    path = cached_machine(tmp_path, "cpu", tmp_path)
    known = (path.read_bytes(), path.stat().st_mtime_ns)
    link = read_host_link(read_machine(path), path)
    assert WHEN in link.source
    assert (link.bandwidth, link.latency, link.room, link.to) == (3.5e9, 1e-5, 999, "disk")
    assert (link.overhead, link.overhead_per_byte) == (2e-5, 1e-10)
    assert "takes 20 microseconds of what computes, and 100 more for each MB of it (" in link.source
    assert cached_machine(tmp_path, "cpu", tmp_path) == path and len(measuring) == 1
    assert (path.read_bytes(), path.stat().st_mtime_ns) == known


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"artifact": "tightfit.link/2"}, "is no tightfit.link/3"),
        ({"more": 1}, "is no tightfit.link/3"),
        ({"when": "yesterday"}, "does not say when it was measured"),
        ({"when": None}, "does not say when it was measured"),
        ({"lost": 1.5}, "lost is none from 0 to 1"),
        ({"sample": 0}, "sample is none from 1 to"),
        ({"to": -1.0}, "a speed is none from 1 to 1e"),
        ({"to": True}, "a speed is none"),
        ({"both": [1e9]}, "both is no pair of speeds"),
        ({"both": [1e9, "fast"]}, "both is none from"),
        ({"latency": 2.0}, "latency is none from 0 to 1"),
        ({"overhead": -1e-9}, "overhead is none from 0 to 1"),
        ({"overhead": None}, "overhead is none from 0 to 1"),
        ({"overhead_per_byte": 0.01}, "overhead_per_byte is none from 0 to 0.001"),
        ({"overhead_per_byte": True}, "overhead_per_byte is none"),
        ({"room": 0.5}, "room is none"),
        ({"room": 1.5}, "does not say which memory"),
        ({"room": 10**400}, "room is none"),
        ({"memory": "tape"}, "does not say which memory"),
        ({"folder": None}, "does not say which memory"),
        ({"memory": "host", "folder": ""}, "is the link to the host, not to the disk /"),
        ({"folder": "/nowhere"}, "is the link to the disk /nowhere, not to the disk /"),
    ],
)
def test_a_doctored_link_is_refused(
    changes: dict[str, Any], said: str, tmp_path: Path, measuring: list[str]
) -> None:
    cached_link(tmp_path, "cpu", tmp_path)
    [path] = (tmp_path / "profile").glob("*.link-3.json")
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    with pytest.raises(ArtifactError, match=f"{said}.*; remove it, and the link is measured anew"):
        cached_link(tmp_path, "cpu", tmp_path)


def test_a_link_is_read_as_it_was_written(tmp_path: Path) -> None:
    timed = MeasuredLink(SPEED, "disk", 5, "/data", "", WHEN, 0.25, 1e9)
    for link in (timed, MeasuredLink(SPEED, "host", 1 << 40)):
        write_measured_link(tmp_path / "link.json", link)
        assert read_measured_link(tmp_path / "link.json") == link


def test_a_link_to_a_third_memory_is_kept_by_both_ends(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("near", "far"):
        (tmp_path / name).mkdir()
    near, far, store = tmp_path / "near", tmp_path / "far", tmp_path / "store"
    first = cached_second_tier_link(store, "cpu", near, far, size=1)
    assert (first.memory, first.folder, first.behind) == ("far-disk", str(far), str(near))
    assert min(first.speed.to, first.speed.back, *first.speed.both) > 0
    [path] = (store / "profile").glob("*.link-3.json")
    assert read_measured_link(path) == first and not [*near.iterdir(), *far.iterdir()]
    write_measured_link(path, replace(first, room=7))
    assert cached_second_tier_link(store, "cpu", near, far, size=1).room == 7
    assert cached_second_tier_link(store, "cpu", far, far, size=1).room != 7
    own = MeasuredLink(SPEED, "disk", 9, str(near))
    for changed in (own, replace(first, behind="/x")):
        write_measured_link(path, changed)
        with pytest.raises(ArtifactError, match="; remove it, and the link is measured anew"):
            cached_second_tier_link(store, "cpu", near, far, size=1)
    for doctored in ({"behind": 7}, {"behind": ""}, {"memory": "disk"}):
        path.write_text(json.dumps(json.loads(path.read_text()) | doctored))
        with pytest.raises(ArtifactError, match="does not say which memory"):
            cached_second_tier_link(store, "cpu", near, far, size=1)
        write_measured_link(path, first)
    with pytest.raises(ConfigError, match="second_disk: tensors cannot wait in files of /nowhere"):
        cached_second_tier_link(store, "cpu", near, "/nowhere", size=1)
    words = [
        "--disk",
        str(near),
        "--second-disk",
        str(far),
        "--library",
        str(store),
        "--size",
        "4MiB",
    ]
    assert main(["machine", *words, "--out", str(tmp_path / "three.json")]) == 0
    assert [line.split(":")[0] for line in capsys.readouterr().out.splitlines()] == [
        "cpu to disk",
        "disk to far-disk",
    ]
    machine = read_machine(tmp_path / "three.json")
    link = read_host_link(machine, "it")
    beyond = second_tier_link(machine, link, "it")
    assert link.to == "disk" and beyond is not None and beyond.to == "far-disk"
    assert beyond.bandwidth > 0 and beyond.room > 0


def test_a_disk_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="disk: tensors cannot wait in files of /nowhere"):
        cached_link(tmp_path, "cpu", "/nowhere")
    assert not list((tmp_path / "profile").glob("*.json"))


def test_the_command_keeps_what_it_measures(
    tmp_path: Path, measuring: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["machine", "--disk", str(tmp_path), "--out", str(tmp_path / "machine.json")]
    kept = [*words, "--library", str(tmp_path / "store")]
    assert [main(kept) for _ in range(2)] == [0, 0] and len(measuring) == 1
    assert [main([*kept, "--remeasure"]), main([*kept, "--size", "8MiB"])] == [0, 0]
    assert len(measuring) == 3 and main([*words, "--remeasure"]) == 1
    assert "--remeasure: is for what --library has" in capsys.readouterr().err
