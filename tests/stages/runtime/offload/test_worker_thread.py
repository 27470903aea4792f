"""Threads for jobs: in order, with what they return or raise, and without holding what they did."""

from __future__ import annotations

import gc
import threading
import weakref
from functools import partial

import pytest

from tightfit.stages.runtime.offload.worker_thread import WorkerFuture, WorkerThread


def test_jobs_are_done_in_the_order_in_which_they_are_submitted() -> None:
    worker, release = WorkerThread("one"), threading.Event()
    done: list[int] = []

    def note(number: int) -> int:
        done.append(number)
        return number

    first = worker.submit(lambda: release.wait(10))
    others = [worker.submit(partial(note, number)) for number in range(5)]
    assert not first.done() and not others[-1].done() and not done
    with pytest.raises(TimeoutError):
        others[0].result(0.01)
    release.set()
    assert [job.result(10) for job in reversed(others)] == [4, 3, 2, 1, 0]
    assert done == [0, 1, 2, 3, 4] and first.done() and first.exception() is None
    worker.shutdown()


def test_what_a_job_raises_is_told_to_all_who_wait() -> None:
    worker = WorkerThread("one")

    def fail() -> None:
        raise OSError(5, "broken")

    failed, after = worker.submit(fail), worker.submit(lambda: "done")
    for _ in range(2):
        with pytest.raises(OSError, match="broken"):
            failed.result()
    assert isinstance(failed.exception(), OSError) and after.result() == "done"
    worker.shutdown()


def test_several_threads_may_wait_for_a_job() -> None:
    worker, release = WorkerThread("one"), threading.Event()
    job = worker.submit(lambda: release.wait(10))
    found: list[bool] = []
    waiting = [threading.Thread(target=lambda: found.append(job.result())) for _ in range(4)]
    for thread in waiting:
        thread.start()
    release.set()
    for thread in waiting:
        thread.join(10)
    assert found == [True] * 4
    worker.shutdown()


def test_a_thread_holds_nothing_of_what_it_did_and_ends() -> None:
    class Held:
        pass

    worker, held = WorkerThread("alone"), Held()
    known = weakref.ref(held)
    job = worker.submit(lambda held=held: None)  # type: ignore[misc]
    del held
    job.result()
    # The thread goes on to wait before it is asked for more.
    assert worker.submit(worker.is_current).result() and not worker.is_current()
    gc.collect()
    assert known() is None
    [thread] = [each for each in threading.enumerate() if each.name == "alone"]
    worker.shutdown()
    thread.join(10)
    assert not thread.is_alive()


def test_a_job_that_is_through_from_the_start() -> None:
    job = WorkerFuture.of(7)
    assert job.done() and job.result() == 7 and job.exception(0) is None
