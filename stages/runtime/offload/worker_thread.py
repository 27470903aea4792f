"""Threads that do one job after the other, quick to begin and to wait for.

Those of `concurrent.futures` take several times as long for that, most of it with the lock of the
interpreter, which the thread that computes needs for each of its calls.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any


class WorkerFuture:
    """A call that a thread makes: what it returns or raises, once it is through."""

    __slots__ = ("_call", "_error", "_found", "_gate", "_through")

    def __init__(self, call: Callable[[], Any] | None) -> None:
        self._call = call
        self._found: Any = None
        self._error: BaseException | None = None
        self._through = False
        self._gate = threading.Lock()
        self._gate.acquire()

    @classmethod
    def of(cls, found: Any) -> WorkerFuture:
        """One that is through."""
        made = cls(None)
        made._found = found
        made._end()
        return made

    def run(self) -> None:
        """Makes the call, which nothing holds any more then."""
        call, self._call = self._call, None
        try:
            assert call is not None
            self._found = call()
        except BaseException as error:  # whoever waits for it is told
            self._error = error
        del call
        self._end()

    def _end(self) -> None:
        self._through = True
        self._gate.release()

    def done(self) -> bool:
        """Whether it is through."""
        return self._through

    def result(self, timeout: float = -1) -> Any:
        """What the call returns, once it is through; raises what it raises, and TimeoutError after
        so many seconds."""
        error = self.exception(timeout)
        if error is not None:
            raise error
        return self._found

    def exception(self, timeout: float = -1) -> BaseException | None:
        """What the call raises, once it is through, None for nothing; see `result`."""
        if not self._through:
            if not self._gate.acquire(timeout=timeout):
                raise TimeoutError("a job is not through")
            self._gate.release()
        return self._error


class WorkerThread:
    """A thread that does jobs in the order in which they are submitted. It begins with the first
    one, and ends with the process or behind `shutdown`."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._jobs: SimpleQueue[WorkerFuture | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._beginning = threading.Lock()

    def submit(self, call: Callable[[], Any]) -> WorkerFuture:
        """A call that is made behind those submitted before."""
        job = WorkerFuture(call)
        self._jobs.put(job)
        if self._thread is None:
            self._begin()
        return job

    def shutdown(self) -> None:
        """The thread ends behind what was submitted; this does not wait for it."""
        self._jobs.put(None)

    def is_current(self) -> bool:
        """Whether this is asked in the thread itself."""
        return self._thread is threading.current_thread()

    def _begin(self) -> None:
        with self._beginning:
            if self._thread is None:
                self._thread = threading.Thread(
                    target=_run_jobs, args=(self._jobs,), name=self.name, daemon=True
                )
                self._thread.start()


def _run_jobs(jobs: SimpleQueue[WorkerFuture | None]) -> None:
    while (job := jobs.get()) is not None:
        job.run()
        # Who waits for it may be the last to hold it.
        del job
