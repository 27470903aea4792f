"""How sizes, times and names are said, and where things lie on axes."""

from __future__ import annotations

import pytest

from tightfit.stages.report.axes import (
    AxisScale,
    assign_label_rows,
    fit_scale,
    round_step,
    staircase_path,
)
from tightfit.stages.report.formatting import (
    format_bytes,
    format_count,
    format_duration,
    format_exact_bytes,
    format_list,
    format_percent,
    format_ratio,
    module_pattern,
    short_op_name,
    trim_decimals,
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
    assert format_bytes(bytes_) == words


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0, "0 s"), (1.234, "1.23 s"), (0.412, "412.0 ms"), (38e-6, "38 µs"), (2.5e-7, "0.2 µs")],
)
def test_durations(seconds: float, words: str) -> None:
    assert format_duration(seconds) == words


def test_other_words() -> None:
    assert format_exact_bytes(144_737_240) == "144,737,240 bytes"
    assert format_ratio(1.046) == "1.05x"
    assert format_percent(0.0489) == "4.9%"
    assert format_count(1, "op") == "1 op" and format_count(1200, "op") == "1,200 ops"
    assert format_list(["a", "b"]) == "a, b"
    assert format_list(list("abcdef")) == "a, b, c, d and 2 more"
    assert trim_decimals("100.0 MB") == "100 MB" and trim_decimals("1.20 s") == "1.20 s"


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
    assert short_op_name(target) == name


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
    assert module_pattern(path) == open_


def test_scale() -> None:
    scale = AxisScale(50, 150)
    assert (scale.at(50), scale.at(100), scale.at(150)) == (0, 50, 100)
    assert AxisScale(50, 150, flipped=True).at(50) == 100
    assert AxisScale(3, 3).at(3) == 50
    ticks = AxisScale(0.93, 1.27).ticks(5, format_ratio)
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
    scale = fit_scale([10, 20], 0.1)
    assert (scale.low, scale.high) == (9, 21)
    assert fit_scale([], 0.1).high > 0
    assert fit_scale([5], 0.1).high > 5


def test_no_two_ticks_have_one_label() -> None:
    ticks = AxisScale(0.0, 1.0).ticks(10, lambda value: f"{value:.0f}")
    assert [tick.label for tick in ticks] == ["0", "1"]
    assert len(AxisScale(0.0, 1.0).ticks(10, str)) == 11


def test_stairs_hold_a_level_until_the_next_point() -> None:
    assert staircase_path([(0, 50), (20, 40)]) == "M0.0 500.0H200.0V400.0"
    assert staircase_path([]) == ""


def test_labels_keep_apart() -> None:
    assert assign_label_rows([0, 5, 30, 32, 33], room=10, most=2) == [0, 1, 0, 1, -1]
