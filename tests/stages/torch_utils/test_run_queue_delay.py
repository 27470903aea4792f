"""What other work takes of a call on the host: counted for each thread, and left out."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import pytest

from tightfit.stages.torch_utils import timing
from tightfit.stages.torch_utils.memory_meter import time_calls
from tightfit.stages.torch_utils.timing import HostClock, is_machine_idle


def threads(folder: Path, ran: int = 0, **waited: int) -> None:
    """What the system says of threads: nanoseconds that each ran, and that no processor ran it."""
    for name, delay in waited.items():
        (folder / name).mkdir(exist_ok=True)
        (folder / name / "schedstat").write_text(f"{ran} {delay} 7\n")


@pytest.fixture
def tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the system says so; a call takes ten seconds, one of them of the processor."""
    monkeypatch.setattr(timing, "THREADS_FOLDER", tmp_path)
    seconds = itertools.cycle([100.0, 110.0])
    own = itertools.cycle([5.0, 6.0])
    monkeypatch.setattr(timing.time, "perf_counter", lambda: next(seconds))
    monkeypatch.setattr(timing.time, "thread_time", lambda: next(own))
    return tmp_path


def test_the_longest_delay_is_left_out(tasks: Path) -> None:
    threads(tasks, a=10**9, b=3 * 10**9)
    clock = HostClock()
    assert clock(lambda: None) == 10.0 and clock.share == 0.0
    assert clock(lambda: threads(tasks, a=5 * 10**9, b=4 * 10**9, c=2 * 10**9)) == 6.0
    assert (clock.spent, clock.lost, clock.share) == (20.0, 4.0, 0.2)


def test_no_less_is_counted_than_the_thread_ran(tasks: Path) -> None:
    threads(tasks, a=0)
    assert HostClock()(lambda: threads(tasks, a=10**12)) == 1.0


def test_no_less_is_counted_than_any_thread_ran(tasks: Path) -> None:
    """As one that moves bytes while the thread of the call waits: no link is faster than that."""
    threads(tasks, a=0, b=0)
    clock = HostClock()
    assert clock(lambda: threads(tasks, ran=4 * 10**9, a=0, b=9 * 10**9)) == pytest.approx(4.0)


def test_where_nothing_counts_all_of_it_is_the_call(tasks: Path) -> None:
    (tasks / "gone").mkdir()
    (tasks / "odd").mkdir()
    (tasks / "odd" / "schedstat").write_text("no numbers here\n")
    assert timing.thread_delays() == {}
    assert HostClock()(lambda: threads(tasks / "odd", a=10**10)) == 10.0
    tasks.rename(tasks.with_name("elsewhere"))
    assert HostClock()(lambda: None) == 10.0 and HostClock().share == 0.0


def test_calls_that_other_work_disturbs_count_only_where_there_are_few_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each second call is delayed by far more than it takes, and leaves other contents in caches:
    it takes longer, also without its delay."""
    monkeypatch.setattr(timing, "THREADS_FOLDER", tmp_path)
    threads(tmp_path, a=0)
    now, calls = [0.0], itertools.count()
    monkeypatch.setattr(timing.time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(timing.time, "thread_time", lambda: 0.0)

    def call(each: int) -> None:
        number = next(calls)
        disturbed = number % each == 0
        now[0] += 10.0 if disturbed else 1.0
        threads(tmp_path, a=7 * 10**9 * (number // each + 1))

    found = time_calls("cpu", lambda: call(2), limit=math.inf, most=10)
    assert (found.median, found.repeats, found.lost) == (1.0, 5, 0.0)
    calls = itertools.count()
    threads(tmp_path, a=0)
    found = time_calls("cpu", lambda: call(1), limit=math.inf, most=10)
    assert (found.median, found.repeats) == (3.0, 10) and found.lost == pytest.approx(0.7)


def test_calls_that_take_more_new_pages_than_others_do_not_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Steps find the pages of their heap in memory, and take new ones for large blocks."""
    now, pages, calls = [0.0], [0], itertools.count()
    monkeypatch.setattr(timing.time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(timing, "_page_faults", lambda: pages[0])

    def call() -> None:
        fresh = next(calls) % 3 != 0
        now[0] += 9.0 if fresh else 1.0
        pages[0] += 7000 if fresh else 1000

    found = time_calls("cpu", call, limit=0.0, least=5, most=15)
    assert (found.median, found.repeats) == (1.0, 3)


def test_long_calls_that_agree_are_timed_three_times(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(
        "tightfit.stages.torch_utils.memory_meter.time.perf_counter", lambda: now[0]
    )

    def take(seconds: float) -> None:
        now[0] += seconds

    assert time_calls("cpu", lambda: take(1.0)).repeats == 3
    unequal = itertools.cycle([1.0, 1.0, 2.0])
    assert time_calls("cpu", lambda: take(next(unequal))).repeats == 5
    assert time_calls("cpu", lambda: take(0.02)).repeats == 5


def test_timings_tell_what_was_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "THREADS_FOLDER", tmp_path)
    assert time_calls("cpu", lambda: sum(range(1000)), most=5).lost == 0.0
    grown = itertools.count(1)
    monkeypatch.setattr(timing.time, "thread_time", lambda: 0.0)
    busy = time_calls("cpu", lambda: threads(tmp_path, a=next(grown) * 10**12), most=5)
    assert busy.lost == 1.0 and busy.median == 0.0
    assert is_machine_idle()
    monkeypatch.setattr(timing, "longest_run_and_delay", lambda before, after: (0.0, 10.0))
    assert not is_machine_idle()
    monkeypatch.setattr(timing, "longest_run_and_delay", lambda before, after: (0.0, 0.0))
    assert is_machine_idle()
    monkeypatch.setattr(timing, "THREADS_FOLDER", Path("/nowhere"))
    assert not is_machine_idle()
