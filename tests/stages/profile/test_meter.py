from __future__ import annotations

import gc

import pytest
import torch

from tests.stages.torch_utils.fake_gpus import stand_in
from tightfit.stages.torch_utils.memory_meter import (
    measure_call_memory,
    memory_session,
    summarize_timings,
    time_calls,
)

torch.set_num_threads(1)


def test_peak_and_net_of_a_call_are_exact() -> None:
    def call() -> torch.Tensor:
        first = torch.ones(1000)
        second = torch.ones(2000)
        del first
        return second

    usage, result = measure_call_memory("cpu", call)
    assert (usage.peak, usage.net) == (12000, 8000)
    assert result.shape == (2000,)


def test_the_workspace_of_a_convolution_is_seen() -> None:
    image, kernel = torch.randn(1, 3, 16, 16), torch.randn(4, 3, 3, 3)
    torch.conv2d(image, kernel)
    usage, result = measure_call_memory("cpu", lambda: torch.conv2d(image, kernel))
    assert usage.net == result.untyped_storage().nbytes()
    assert usage.peak >= usage.net


def test_sections_of_one_session_do_not_see_each_other() -> None:
    held = []
    with memory_session("cpu") as running:
        with running.section("one"):
            held.append(torch.ones(100))
        outside = torch.ones(10_000)
        with running.section("two"):
            del outside
            held.append(torch.ones(50))
    assert (running.section_usage("one").peak, running.section_usage("one").net) == (400, 400)
    two = running.section_usage("two")
    assert (two.peak, two.net) == (0, 200 - 40_000)
    assert running.usage("one begins", "two ends").peak == 40_400


def test_a_line_is_the_live_bytes_in_the_order_of_time() -> None:
    with memory_session("cpu", lines=True) as running, running.section("step"):
        first = torch.ones(25)
        second = torch.ones(50)
        del first
    del second
    line = running.section_usage("step").line
    assert [live for _, live in line] == [0, 100, 300, 200]
    assert line == sorted(line, key=lambda point: point[0])


def test_a_session_pauses_the_garbage_collector_and_starts_it_again() -> None:
    with memory_session("cpu"):
        assert not gc.isenabled()
    assert gc.isenabled()
    with pytest.raises(ZeroDivisionError), memory_session("cpu"):
        _ = 1 / 0
    assert gc.isenabled()


def test_the_profiler_does_not_speak(capfd: pytest.CaptureFixture[str]) -> None:
    measure_call_memory("cpu", lambda: torch.ones(3))
    assert capfd.readouterr() == ("", "")


def test_repeats_stay_between_their_bounds() -> None:
    calls: list[int] = []
    before: list[int] = []
    timing = time_calls("cpu", lambda: calls.append(1), lambda: before.append(1), 0.0, least=5)
    assert 5 <= timing.repeats == len(calls) == len(before)
    timing = time_calls("cpu", lambda: None, limit=60.0, most=8, steady=float("inf"))
    assert timing.repeats == 8


def test_quartiles() -> None:
    timing = summarize_timings([4.0, 1.0, 2.0, 3.0, 5.0])
    assert (timing.first_quartile, timing.median, timing.third_quartile) == (2.0, 3.0, 4.0)
    assert timing.spread == pytest.approx(2 / 3)
    assert summarize_timings([2.0]).spread == 0.0


@pytest.mark.cuda
def test_requested_bytes_on_cuda_are_not_rounded() -> None:
    torch.ones(1, device="cuda")
    with memory_session("cuda", lines=True) as running, running.section("step"):
        first = torch.empty(1001, dtype=torch.uint8, device="cuda")
        second = torch.empty(2002, dtype=torch.uint8, device="cuda")
        del first
    usage = running.section_usage("step")
    assert (usage.peak, usage.net) == (3003, 2002)
    assert [live for _, live in usage.line] == [0, 1001, 3003, 2002]
    del second
    assert time_calls("cuda", lambda: torch.ones(5, device="cuda")).median > 0


def test_what_a_call_asks_of_the_allocator_of_a_gpu_is_told_in_its_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An address may be used again; what was there before the call is not told when it is freed."""
    gpus = stand_in(monkeypatch)
    gpus.take(1, 50, address=1)

    def call() -> None:
        gpus.take(1, 700, address=2)
        gpus.take(0, 9, address=2)
        gpus.take(1, -50, address=1)
        gpus.take(1, 80, address=1)
        gpus.take(1, -700, address=2)
        gpus.take(1, 60, address=2)

    usage, _ = measure_call_memory("cuda:1", call)
    assert usage.moves == [700, 80, -1, 60]
    assert (usage.peak, usage.net) == (730, 90)
    assert [live for _, live in usage.line] == [0, 700, 650, 730, 30, 90]
