"""The simulator of patterns: the known ones, and a test for each reason to refuse."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tightfit.schemas.pipeline_pattern import (
    PatternKind,
    PatternOperation,
    PipelinePattern,
    check_pipeline_pattern,
)
from tightfit.stages.simulate.pipeline_pattern import (
    DeviceCapacity,
    StageMemory,
    simulate_pattern,
    step_seconds,
    unroll_pattern,
)
from tightfit.util.errors import ScheduleError

CASES = Path(__file__).parents[2] / "cases" / "pipeline_patterns.json"
KINDS: dict[str, PatternKind] = {"F": "forward", "B": "backward"}


def row(
    device: str, stage: int, kind: PatternKind, start: float, duration: float, shift: int
) -> PatternOperation:
    return PatternOperation(device, stage, kind, start, duration, shift)


TWO = PipelinePattern(
    6.0,
    1,
    [
        row("a", 1, "forward", 0, 1, 1),
        row("a/b", 1, "send", 1, 1, 1),
        row("b", 2, "forward", 2, 1, 1),
        row("b", 2, "backward", 3, 2, 1),
        row("a/b", 1, "receive", 5, 1, 1),
        row("a", 1, "backward", 3, 2, 0),
    ],
)
"""Two stages that meet over a link: the backward of the first works one batch behind."""
BYTES = [StageMemory(10), StageMemory(7)]


def with_row(pattern: PipelinePattern, index: int, **changes: Any) -> PipelinePattern:
    rows = list(pattern.operations)
    rows[index] = replace(rows[index], **changes)
    return replace(pattern, operations=rows)


def without(pattern: PipelinePattern, *indices: int) -> PipelinePattern:
    rows = [row for index, row in enumerate(pattern.operations) if index not in indices]
    return replace(pattern, operations=rows)


@pytest.mark.parametrize(
    "case", json.loads(CASES.read_text())["cases"], ids=lambda case: case["id"]
)
def test_the_known_patterns(case: dict[str, Any]) -> None:
    rows = [
        row(str(o["resource"]), o["stage"], KINDS[o["kind"]], o["start"], o["duration"], o["shift"])
        for o in case["ops"]
    ]
    pattern = PipelinePattern(case["period"], case["k"], rows)
    check_pipeline_pattern(pattern, "the case")
    stored = {o["stage"]: o["activation"] for o in case["ops"]}
    stages = [StageMemory(stored[stage]) for stage in range(1, case["stages"] + 1)]
    room = DeviceCapacity({str(device): size for device, size in enumerate(case["weights"])})
    if not case["expected_valid"]:
        with pytest.raises(ScheduleError):
            simulate_pattern(pattern, stages, room)
        return
    played = simulate_pattern(pattern, stages, room)
    assert played.in_flight == case["expected_nca"][1:]
    numbers = range(1, case["stages"] + 1)
    assert [played.peaks[str(device)] for device in numbers] == case["expected_peak"][1:]


def test_two_stages_over_a_link() -> None:
    played = simulate_pattern(TWO, BYTES, DeviceCapacity({"a": 100}, {"a": 120, "b": 7}))
    assert played.in_flight == [2, 1]
    assert played.peaks == {"a": 120, "b": 7}
    assert played.span == 2


def test_a_step_begins_each_operation_as_soon_as_it_can() -> None:
    """In the order of the pattern: the second forward waits for the link, and no gap of the warm-up
    stays."""
    ends = [
        max(start + operation.duration for start, _, operation in unroll_pattern(TWO, count))
        for count in (1, 2)
    ]
    assert ends == [11.0, 17.0]
    assert [step_seconds(TWO, count) for count in (1, 2)] == [8.0, 13.0]


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        (without(TWO, 5), "the backward of stage 1 skips batches"),
        (without(TWO, 2), "the forward of stage 2 skips batches"),
        (without(TWO, 4), "the receive of stage 1 skips batches"),
        (without(TWO, 1), "the send of stage 1 skips batches"),
        (replace(TWO, batches=2), "the forward of stage 1 skips batches"),
        (
            replace(TWO, operations=[*TWO.operations, row("c", 2, "forward", 0, 0, 2)]),
            "the forward of stage 2 works on a batch twice",
        ),
        (with_row(TWO, 3, device="c"), "stage 2 runs on two devices"),
        (with_row(TWO, 5, shift=-1), "the first backward of stage 1 has shift -1, by convention"),
        (with_row(TWO, 1, start=0.5), "the send of stage 1 begins before the forward of stage 1"),
        (with_row(TWO, 2, shift=2), "the forward of stage 2 begins before the send of stage 1"),
        (with_row(TWO, 3, start=2.5), "the backward of stage 2 begins before the forward of st"),
        (with_row(TWO, 4, shift=2), "the receive of stage 1 begins before the backward of stage 2"),
        (
            replace(TWO, operations=[
                replace(o, shift=o.shift - 1) if o.stage == 1 and o.operation != "backward" else
                replace(o, shift=o.shift - 1) if o.stage == 2 else o for o in TWO.operations]),
            "the backward of stage 1 begins before the receive of stage 1",
        ),
        (with_row(TWO, 5, start=0.5), "the forward of stage 1 and the backward of stage 1 overlap"),
        (with_row(TWO, 5, start=5.5), "the backward of stage 1 and the forward of stage 1 overlap"),
        (with_row(TWO, 4, duration=3), "the receive of stage 1 and the send of stage 1 overlap"),
        (with_row(TWO, 5, duration=7), "the backward of stage 1 and the forward of stage 1 over"),
    ],
)  # fmt: skip
def test_what_could_not_run_is_refused(pattern: PipelinePattern, words: str) -> None:
    with pytest.raises(ScheduleError, match=words):
        simulate_pattern(pattern, BYTES, DeviceCapacity())


def test_too_little_memory_is_refused() -> None:
    for memory in ({"a": 119}, {"b": 6}):
        with pytest.raises(ScheduleError, match=r"needs (120|7) bytes and has (119|6)"):
            simulate_pattern(TWO, BYTES, DeviceCapacity({"a": 100}, memory))


def test_other_stages_than_are_known_are_refused() -> None:
    with pytest.raises(ScheduleError, match="the pattern has 2 stages, 1 are known"):
        simulate_pattern(TWO, BYTES[:1], DeviceCapacity())


def alone(*starts: float, durations: Sequence[float] = (1, 1, 1, 1)) -> PipelinePattern:
    """Two neighboring stages on one device: forward 1, forward 2, backward 2, backward 1."""
    kinds: list[tuple[int, PatternKind]] = [(1, "forward"), (2, "forward"), (2, "backward")]
    kinds.append((1, "backward"))
    rows = [
        row("a", stage, kind, start % 8, duration, -int(start // 8))
        for (stage, kind), start, duration in zip(kinds, starts, durations, strict=True)
    ]
    first = rows[-1].shift
    return PipelinePattern(8.0, 1, [replace(row, shift=row.shift - first) for row in rows])


def test_what_waits_on_the_same_device_is_counted() -> None:
    """The output of stage 1 waits for the forward of stage 2 while another operation runs, and the
    gradient of it for the backward of stage 1; while none runs, they do not count."""
    stages = [StageMemory(10, output=3, gradient=5), StageMemory(20)]
    assert simulate_pattern(alone(0, 1, 2, 3), stages, DeviceCapacity()).peaks == {"a": 30}
    # stage 2 works on a batch while the output of the next one waits
    held = simulate_pattern(alone(0, 9, 10, 11), stages, DeviceCapacity())
    assert held.in_flight == [2, 1]
    assert held.peaks == {"a": 10 + 10 + 20 + 3}
    late = simulate_pattern(alone(0, 1, 2, 8 + 6), stages, DeviceCapacity())
    assert late.in_flight == [2, 1]
    assert late.peaks == {"a": 10 + 10 + 20 + 5}
    stages = [StageMemory(10, output=30), StageMemory(1)]
    early = simulate_pattern(alone(0, 8 + 2, 8 + 4, 8 + 5), stages, DeviceCapacity())
    assert early.peaks == {"a": 10 + 10 + 30 + 1}
    between = simulate_pattern(alone(0, 8 + 5, 8 + 6, 16 + 2), stages, DeviceCapacity())
    assert between.peaks == {"a": 3 * 10 + 2 * 30}


def test_temporary_bytes_count_while_their_operation_runs() -> None:
    stages = [StageMemory(10, forward=100, backward=7), StageMemory(20, forward=1, backward=50)]
    assert simulate_pattern(alone(0, 1, 2, 3), stages, DeviceCapacity()).peaks == {"a": 110}
    stages[0] = StageMemory(10, forward=1, backward=100)
    assert simulate_pattern(alone(0, 1, 2, 3), stages, DeviceCapacity()).peaks == {"a": 110}


def test_operations_that_take_no_time_go_by_batch() -> None:
    """A backward that ends a batch goes before a forward that begins a younger one at the same
    moment, and after the forward of its own."""
    stages = [StageMemory(10), StageMemory(20)]
    nothing = (0, 0, 0, 0)
    assert simulate_pattern(
        alone(0, 0, 0, 0, durations=nothing), stages, DeviceCapacity()
    ).in_flight == [
        1,
        1,
    ]
    assert simulate_pattern(
        alone(0, 3, 3, 8, durations=nothing), stages, DeviceCapacity()
    ).in_flight == [
        1,
        1,
    ]
    assert simulate_pattern(
        alone(0, 0, 8, 16, durations=nothing), stages, DeviceCapacity()
    ).in_flight == [
        2,
        1,
    ]
