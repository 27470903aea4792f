"""How sizes, times and names are said, and where things lie on axes."""

from __future__ import annotations

import pytest

from tightfit.stages.report.scales import Scale, levels, round_step, spanning, stairs
from tightfit.stages.report.words import (
    count,
    duration,
    exact,
    listing,
    operator,
    pattern,
    percent,
    ratio,
    size,
    tick,
)


@pytest.mark.parametrize(
    ("bytes_", "words"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (12_300, "12.3 kB"),
        (144_737_240, "144.7 MB"),
        (999_960, "1.0 MB"),
        (999_999_999, "1.00 GB"),
        (8_589_934_592, "8.59 GB"),
        (-2_000_000, "-2.0 MB"),
    ],
)
def test_sizes(bytes_: int, words: str) -> None:
    assert size(bytes_) == words


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0, "0 s"), (1.234, "1.23 s"), (0.412, "412.0 ms"), (38e-6, "38 µs"), (2.5e-7, "0.2 µs")],
)
def test_durations(seconds: float, words: str) -> None:
    assert duration(seconds) == words


def test_other_words() -> None:
    assert exact(144_737_240) == "144,737,240 bytes"
    assert ratio(1.046) == "1.05x"
    assert percent(0.0489) == "4.9%"
    assert count(1, "op") == "1 op" and count(1200, "op") == "1,200 ops"
    assert listing(["a", "b"]) == "a, b"
    assert listing(list("abcdef")) == "a, b, c, d and 2 more"
    assert tick("100.0 MB") == "100 MB" and tick("1.20 s") == "1.20 s"


@pytest.mark.parametrize(
    ("target", "name"),
    [
        ("aten.addmm.default", "addmm"),
        ("aten.add.Tensor", "add.Tensor"),
        ("mylib.thing.default", "mylib.thing.default"),
        ("tightfit.loss", "loss"),
    ],
)
def test_operators(target: str, name: str) -> None:
    assert operator(target) == name


@pytest.mark.parametrize(
    ("path", "open_"),
    [
        ("transformer.h.12.mlp", "transformer.h.*.mlp"),
        ("0", "*"),
        ("features.0.1.conv2", "features.*.*.conv2"),
        ("layer1.ln_2", "layer1.ln_2"),
        ("", ""),
    ],
)
def test_like_layers_read_alike(path: str, open_: str) -> None:
    assert pattern(path) == open_


def test_scale() -> None:
    scale = Scale(50, 150)
    assert (scale.at(50), scale.at(100), scale.at(150)) == (0, 50, 100)
    assert Scale(50, 150, flipped=True).at(50) == 100
    assert Scale(3, 3).at(3) == 50
    ticks = Scale(0.93, 1.27).ticks(5, ratio)
    assert [tick_.label for tick_ in ticks] == ["1.00x", "1.10x", "1.20x"]
    assert all(0 <= tick_.at <= 100 for tick_ in ticks)


def test_round_steps() -> None:
    assert [round_step(value) for value in (1, 1.1, 2.5, 0.07, 40)] == [
        1,
        2,
        5,
        pytest.approx(0.1),
        50,
    ]
    assert round_step(0) == 1


def test_spanning_leaves_room() -> None:
    scale = spanning([10, 20], 0.1)
    assert (scale.low, scale.high) == (9, 21)
    assert spanning([], 0.1).high > 0
    assert spanning([5], 0.1).high > 5


def test_stairs_hold_a_level_until_the_next_point() -> None:
    assert stairs([(0, 50), (20, 40)]) == "M0.0 500.0H200.0V400.0"
    assert stairs([]) == ""


def test_labels_keep_apart() -> None:
    assert levels([0, 5, 30, 32, 33], room=10, most=2) == [0, 1, 0, 1, -1]
