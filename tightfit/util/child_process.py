"""Work in forked processes, so that this one keeps none of the memory that the work takes."""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any, Protocol, TypeVar

from tightfit.util.errors import TightfitError
from tightfit.util.progress import StageProgress

_T = TypeVar("_T")
USE_CHILD_PROCESSES = True
"""Whether work is given to processes; if not, it runs in this one."""
WAIT_SECONDS = 0.2
"""How often a wait for an answer looks whether it is interrupted."""
_PR_SET_PDEATHSIG = 1
_INDUCTOR_MODULE = "torch._inductor.async_compile"


class Task(Protocol):
    """Work whose parts can be pickled, and whose results are files."""

    def run(self, progress: StageProgress) -> object:
        """Does the work."""


def can_fork() -> bool:
    """Whether this process may be forked: on Linux, by its main thread, with no other thread of
    Python but those that are daemons, and those that `torch.compile` leaves, which wait for more
    to compile."""
    apart = {threading.main_thread(), *_inductor_threads()}
    others = (thread for thread in threading.enumerate() if thread not in apart)
    return (
        USE_CHILD_PROCESSES
        and sys.platform == "linux"
        and threading.current_thread() is threading.main_thread()
        and all(thread.daemon for thread in others)
    )


def _inductor_threads() -> set[threading.Thread]:
    """The threads of the pool in which inductor compiles, which live as long as the process."""
    module = sys.modules.get(_INDUCTOR_MODULE)
    if module is None or module.get_compile_threads() <= 1:  # one thread needs no pool
        return set()
    threads: set[threading.Thread] = module.AsyncCompile.pool()._threads
    return threads


def _renew_inductor_pool() -> None:
    """Inductor makes a pool of threads anew when it compiles: a forked process has none of the
    threads of the old one, and would wait for them."""
    module = sys.modules.get(_INDUCTOR_MODULE)
    if module is not None:
        module.AsyncCompile.pool.cache_clear()


class ChildProcess:
    """A process, forked when it is first needed, that answers calls one after the other.

    The process has a group of its own, so that an interruption by the keyboard reaches it once,
    from this one, and it ends with this one. What it answers, and the errors of tightfit, are
    pickled. A call that fails in another way, or with the process, runs in this process.

    Example:
        >>> with ChildProcess() as child:
        ...     graph = child.call(lambda: trace(built, "model"))
    """

    def __init__(self) -> None:
        self._process: BaseProcess | None = None
        self._connection: Connection | None = None
        self._closed = False

    def __enter__(self) -> ChildProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the process; later calls run in this one."""
        self._closed = True
        if self._connection is not None:
            self._connection.close()
        if self._process is not None:
            self._process.join()
        self._process = self._connection = None

    def end(self) -> None:
        """Ends the process at once, whatever it does."""
        if self._process is not None:
            self._process.kill()
        self.close()

    def run(self, task: Task, progress: StageProgress) -> None:
        """Runs a task there, and tells its progress here."""
        if self._closed or not (self._process is not None or can_fork()):
            task.run(progress)
            return
        if self._connection is None:
            self._start(_serve_tasks)
        assert self._connection is not None
        self._connection.send(task)
        answer = self._wait(progress)
        if not answer:
            task.run(progress)

    def call(
        self, function: Callable[[], _T], meanwhile: Callable[[], object] = lambda: None
    ) -> _T:
        """What a function returns that runs in a process of its own, `meanwhile` another in this
        one."""
        if not can_fork():
            return function()
        with ChildProcess() as one:
            one._start(lambda connection: _serve_call(connection, function))
            meanwhile()
            answer = one._wait(StageProgress())
        return answer[0] if answer else function()

    def _start(self, serve: Callable[[Connection], None]) -> None:
        context = multiprocessing.get_context("fork")
        self._connection, other = context.Pipe()
        ends = (other, self._connection)
        self._process = context.Process(target=_serve_process, args=(serve, *ends))
        self._process.start()
        other.close()

    def _wait(self, progress: StageProgress) -> list[Any]:
        """The answer to a call, in a list; an empty one where there is none. Raises TightfitError
        or KeyboardInterrupt where the call did."""
        while True:
            kind, values = self._receive()
            if kind == "progress":
                name, words = values
                getattr(progress, name)(*words)
            elif kind == "error":
                raise values[0]
            else:
                return values if kind == "result" else []

    def _receive(self) -> tuple[str, list[Any]]:
        """The kind and the parts of the next message; an interruption is passed on."""
        assert self._connection is not None and self._process is not None
        while True:
            try:
                if self._connection.poll(WAIT_SECONDS):
                    kind, *values = self._connection.recv()
                    return kind, values
            except KeyboardInterrupt:
                os.kill(self._process.pid or 0, signal.SIGINT)
            except (EOFError, ConnectionError):
                self.close()
                return "failure", []


def _serve_process(serve: Callable[[Connection], None], own: Connection, other: Connection) -> None:
    """What a forked process does."""
    other.close()
    os.setpgid(0, 0)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    _renew_inductor_pool()
    with contextlib.suppress(EOFError, ConnectionError):
        serve(own)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(0)


def _serve_tasks(connection: Connection) -> None:
    while True:
        task = connection.recv()
        connection.send(_answer_call(partial(_run_task, task, _RelayedProgress(connection))))


def _run_task(task: Task, progress: StageProgress) -> None:
    task.run(progress)


def _serve_call(connection: Connection, function: Callable[[], object]) -> None:
    if "torch" in sys.modules:  # the threads of OpenMP are not in a forked process
        sys.modules["torch"].set_num_threads(1)
    connection.send(_answer_call(function))


def _answer_call(function: Callable[[], object]) -> tuple[object, ...]:
    """What goes back of a call."""
    try:
        return "result", function()
    except TightfitError as error:
        return "error", type(error)(str(error))
    except KeyboardInterrupt:
        return "error", KeyboardInterrupt()
    except BaseException:
        return ("failure",)


class RemoteObject:
    """An object that a process of its own keeps, whose methods are called from here. The process is
    forked now, by one that `can_fork`, and makes the object when a method is first called; what it
    prints is dropped."""

    def __init__(self, make: Callable[[], object]) -> None:
        self._child = ChildProcess()
        self._child._start(partial(_serve_object, make=make))

    def call(self, method: str) -> Any:
        """What a method without arguments returns. Raises ChildError where it fails, or the
        process."""
        assert self._child._connection is not None
        try:
            self._child._connection.send(method)
            answer = self._child._wait(StageProgress())
        except (TightfitError, ConnectionError) as error:
            raise ChildError(str(error)) from error
        if not answer:
            raise ChildError(f"{method} failed in another process")
        return answer[0]

    def close(self) -> None:
        """Ends the process."""
        self._child.end()


class ChildError(Exception):
    """A process of its own did not do what it was asked for."""


def _serve_object(connection: Connection, make: Callable[[], object]) -> None:
    for stream in (1, 2):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
    made: list[object] = []
    while True:
        method = connection.recv()
        connection.send(_answer_call(partial(_call_method, made, make, method)))


def _call_method(made: list[object], make: Callable[[], object], method: str) -> object:
    """What a method of an object returns, which is made where there is none yet."""
    if not made:
        made.append(make())
    return getattr(made[0], method)()


class _RelayedProgress(StageProgress):
    """Sends progress through a connection."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection

    def begin(self, work: str, parts: str) -> None:
        self.connection.send(("progress", "begin", (work, parts)))

    def report(self, done: int, most: int, doing: str = "") -> None:
        self.connection.send(("progress", "report", (done, most, doing)))

    def note(self, text: str) -> None:
        self.connection.send(("progress", "note", (text,)))


def call_in_parallel(functions: Sequence[Callable[[], _T]], workers: int) -> list[_T]:
    """What functions return, each of which runs in a process of its own, at most `workers` at a
    time. What they return, and the errors of tightfit, are pickled; one that fails in another way
    runs in this process, as all do where none can be forked. Raises the first error."""
    if workers < 2 or len(functions) < 2 or not can_fork():
        return [function() for function in functions]
    found: list[_T] = []
    waiting: deque[ChildProcess] = deque()
    started = 0
    try:
        while len(found) < len(functions):
            while started < len(functions) and len(waiting) < workers:
                child, function = ChildProcess(), functions[started]
                child._start(partial(_serve_call, function=function))
                waiting.append(child)
                started += 1
            child = waiting.popleft()
            with child:
                answer = child._wait(StageProgress())
            found.append(answer[0] if answer else functions[len(found)]())
    finally:
        for child in waiting:
            child.end()
    return found
