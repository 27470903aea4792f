from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tightfit.schemas.block_options import (
    BlockOption,
    clock_limited_solves,
    group_options,
    options_link_speed,
    read_block_options,
    write_block_options,
)
from tightfit.schemas.link import HostLink
from tightfit.util.errors import ArtifactError

ZERO = BlockOption(
    block="a" * 64,
    option=0,
    label="save nothing",
    save=4,
    forward_peak=20,
    backward_peak=0,
    forward_seconds=9.0,
    backward_seconds=0.0,
    output_seconds=9.0,
    forward=[0, 1, 2],
    backward=[],
    output_only=[0, 1, 2],
    status="optimal",
    gap=0.0,
)
ONE = replace(
    ZERO,
    option=1,
    save=24,
    forward_peak=24,
    backward_peak=36,
    backward_seconds=6.0,
    output_seconds=3.0,
    backward=[4, 5, 6],
    output_only=[2],
    status="feasible",
    gap=0.25,
    limit="work",
)


def test_options_come_back_by_block(tmp_path: Path) -> None:
    other = [replace(ZERO, block="b" * 64), replace(ONE, block="b" * 64)]
    other[1] = replace(other[1], leaves=[2, 1], leaving_bytes=20)
    write_block_options(tmp_path / "options", [ZERO, ONE, *other], {"engine": "highs"})
    assert read_block_options(tmp_path / "options") == {"a" * 64: [ZERO, ONE], "b" * 64: other}


def test_what_the_clock_ended_is_a_number(tmp_path: Path) -> None:
    for written, ended in (({}, 0), ({"clock": "3"}, 3)):
        write_block_options(tmp_path / "options", [ZERO], written)
        assert clock_limited_solves(tmp_path / "options") == ended
    for said in ("", "-1", "x", "9" * 5000):
        write_block_options(tmp_path / "options", [ZERO], {"clock": said})
        with pytest.raises(ArtifactError, match="'clock' is no number"):
            clock_limited_solves(tmp_path / "options")


def test_options_say_which_link_they_were_made_for(tmp_path: Path) -> None:
    assert HostLink(2.0, 0.5, room=3).speed == HostLink(2.0, 0.5, False).speed
    assert HostLink(2.0, 0.5).speed != HostLink(2.0, 0.25).speed != HostLink(4.0, 0.25).speed
    for metadata, speed in (({}, ""), ({"link": HostLink(2.0).speed}, "2.0 B/s, 0.0 s")):
        write_block_options(tmp_path / "options", [ZERO], metadata)
        assert options_link_speed(tmp_path / "options") == speed


def test_seconds_are_forward_and_backward() -> None:
    assert ONE.seconds == 15.0


def test_groups_keep_the_order() -> None:
    other = replace(ZERO, block="0" * 64)
    assert list(group_options([ZERO, other, ONE])) == ["a" * 64, "0" * 64]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ([ONE], "stands where option 0 should"),
        ([ZERO, ZERO], "stands where option 1 should"),
        ([ZERO, replace(ONE, save=-1)], "negative"),
        ([ZERO, replace(ONE, backward=[4, -5])], "negative"),
        ([ZERO, replace(ONE, gap=-0.1)], "negative"),
        ([ZERO, replace(ONE, backward_seconds=float("nan"))], "negative"),
        ([ZERO, replace(ONE, forward_seconds=float("inf"))], "a time without end"),
        ([ZERO, replace(ONE, backward_seconds=1e300)], "a time without end"),
        ([ZERO, replace(ONE, save=25)], "saves more than its forward ever holds"),
        ([ZERO, replace(ONE, output_only=[3])], "that it does not run"),
        ([ZERO, replace(ONE, status="best")], "unknown status"),  # type: ignore[arg-type]
        ([ZERO, replace(ONE, limit="luck")], "unknown status"),
        ([replace(ZERO, backward=[4])], "has a backward"),
        ([replace(ZERO, leaves=[1], leaving_bytes=4)], "lets something leave"),
        ([ZERO, replace(ONE, leaves=[-1], leaving_bytes=4)], "negative"),
        ([ZERO, replace(ONE, leaves=[1], leaving_bytes=-4)], "negative"),
        ([ZERO, replace(ONE, leaves=[1], leaving_bytes=25)], "lets leave what it does not save"),
        ([ZERO, replace(ONE, leaves=[1, 1], leaving_bytes=4)], "lets leave what it does not save"),
    ],
)
def test_what_makes_no_sense_is_refused(
    tmp_path: Path, options: list[BlockOption], words: str
) -> None:
    with pytest.raises(ArtifactError, match=words):
        write_block_options(tmp_path / "options", options)
    assert not (tmp_path / "options").exists()
