"""Runs groups of cases in processes, so that a case that crashes or hangs ends alone."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib.machinery
import multiprocessing
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from tests.conformance.judge import RAW, SKIPPED, Judgment, judge_case
from tests.conformance.suite import Group, Selection

CASE_SECONDS = 300.0
"""The longest that a case may take."""
CASES_OF_A_PROCESS = 40
"""After so many cases a process ends and another one goes on: each leaves a package behind."""
_PR_SET_PDEATHSIG = 1
SAMPLES = "its samples"
"""The name of what runs before the first case of a group."""


@dataclass(frozen=True)
class CaseResult:
    """What came of one case, and the seconds it took."""

    suite: str
    group: str
    case: str
    seconds: float
    judgment: Judgment


@dataclass(frozen=True)
class Job:
    """The chosen cases of a group of a suite."""

    suite: str
    group: Group
    selection: Selection


@dataclass
class _Worker:
    """A process that runs jobs by number, with its end of the pipe. `job`, `number` and `name` are
    of the case that it runs since `started`; `left` is how many more it may run."""

    process: BaseProcess
    connection: Connection
    job: int | None = None
    number: int = 0
    name: str = SAMPLES
    started: float = 0.0
    left: int = CASES_OF_A_PROCESS

    def begin(self, job: int, first: int) -> None:
        """Has the process run a job from one of its cases on."""
        self.job, self.number, self.name, self.started = job, first, SAMPLES, time.monotonic()
        self.connection.send((job, first))

    def stop(self) -> None:
        """Ends the process."""
        self.process.kill()
        self.process.join()
        self.connection.close()


@dataclass
class WorkerPool:
    """Processes that run jobs; `results` gives what comes of them."""

    jobs: Sequence[Job]
    store: Path
    processes: int
    limit: float = CASE_SECONDS
    workers: list[_Worker] = field(default_factory=list)

    def results(self) -> Iterator[CaseResult]:
        """The results of all jobs as they come."""
        waiting = [(number, 0) for number in reversed(range(len(self.jobs)))]
        try:
            while waiting or any(worker.job is not None for worker in self.workers):
                self.assign(waiting)
                wait([worker.connection for worker in self.workers], timeout=1.0)
                for worker in list(self.workers):
                    yield from self.look_after(worker, waiting)
        finally:
            for worker in self.workers:
                worker.stop()

    def assign(self, waiting: list[tuple[int, int]]) -> None:
        """Gives jobs to processes that have none, new ones where there are too few."""
        for worker in [each for each in self.workers if each.job is None and each.left <= 0]:
            self.drop(worker)
        idle = [worker for worker in self.workers if worker.job is None]
        while waiting and (idle or len(self.workers) < self.processes):
            worker = idle.pop() if idle else self.start()
            worker.begin(*waiting.pop())

    def start(self) -> _Worker:
        """A new process."""
        context = multiprocessing.get_context("fork")
        here, other = context.Pipe()
        work = (self.jobs, self.store, other, here)
        process = context.Process(target=_serve, args=work, daemon=True)
        process.start()
        other.close()
        self.workers.append(_Worker(process, here))
        return self.workers[-1]

    def drop(self, worker: _Worker) -> None:
        """Ends a process."""
        worker.stop()
        self.workers.remove(worker)

    def look_after(self, worker: _Worker, waiting: list[tuple[int, int]]) -> Iterator[CaseResult]:
        """The results that a process has sent, or the one of a case that it does not end; what is
        left of its job waits for another one then."""
        if worker.job is None:
            return
        said = ""
        try:
            while worker.job is not None and worker.connection.poll():
                yield from self.receive(worker, waiting)
        except (EOFError, ConnectionError):
            worker.process.join()
            said = f"its process ended with code {worker.process.exitcode}"
        if worker.job is not None and time.monotonic() - worker.started > self.limit:
            said = said or f"took longer than {self.limit:g} s"
        if said and worker.job is not None:
            yield self.result(worker, worker.name, Judgment(RAW, said))
            if worker.name != SAMPLES:
                waiting.append((worker.job, worker.number + 1))
            self.drop(worker)

    def receive(self, worker: _Worker, waiting: list[tuple[int, int]]) -> Iterator[CaseResult]:
        """The result in one message of a process, if it is one."""
        assert worker.job is not None
        kind, *words = worker.connection.recv()
        if kind == "result":
            yield self.result(worker, *words)
        if kind == "begin":
            worker.number, worker.name = words
            worker.left -= 1
        elif kind == "pause":
            waiting.append((worker.job, worker.number + 1))
        if kind in ("pause", "end"):
            worker.job = None
        worker.started = time.monotonic()

    def result(self, worker: _Worker, name: str, judgment: Judgment) -> CaseResult:
        """What came of a case of a process by now."""
        assert worker.job is not None
        job, seconds = self.jobs[worker.job], time.monotonic() - worker.started
        return CaseResult(job.suite, job.group.name, name, seconds, judgment)


def _serve(jobs: Sequence[Job], store: Path, connection: Connection, other: Connection) -> None:
    """What a process does: it runs jobs until it is ended, or its parent is."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    other.close()
    prepare_process()
    with contextlib.suppress(EOFError, ConnectionError), tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        while True:
            number, first = connection.recv()
            _run(jobs[number], first, store, connection.send)


def _run(job: Job, first: int, store: Path, send: Callable[[Any], None]) -> None:
    try:
        cases = job.group.cases(job.selection.seed)
    except Exception as error:
        said = f"its samples cannot be made: {type(error).__name__}: {' '.join(str(error).split())}"
        if job.selection.numbers(job.group.name, 1):
            send(("result", SAMPLES, Judgment(SKIPPED, said[:300])))
        send(("end",))
        return
    numbers = job.selection.numbers(job.group.name, len(cases))
    left = [number for number in numbers if number >= first]
    for number in left[:CASES_OF_A_PROCESS]:
        case = cases[number]
        send(("begin", number, case.name))
        send(("result", case.name, judge_case(case, store, job.group.namespaces)))
        gc.freeze()  # each case collects garbage many times, which looks through all the rest
    send(("pause",) if len(left) > CASES_OF_A_PROCESS else ("end",))


def prepare_process() -> None:
    """Has this process plan quickly and alike: on one thread, without children of its own, without
    waiting for the disk or for other work, and with modules of the same text compiled once."""
    import torch

    from tightfit.stages.solve import option_store
    from tightfit.stages.torch_utils import timing
    from tightfit.util import child_process
    from tightfit.util.code_cache import compile_cached

    gc.collect()
    gc.freeze()
    torch.set_num_threads(1)
    child_process.USE_CHILD_PROCESSES = False
    timing.THREADS_FOLDER = Path("/nowhere")
    os.fsync = lambda _: None  # type: ignore[assignment]
    option_store._Workers.solve = _solve_here  # type: ignore[method-assign, assignment]
    compiled = importlib.machinery.SourceFileLoader.source_to_code

    def code_of(loader: Any, data: Any, path: Any, **given: Any) -> Any:
        if isinstance(data, bytes) and not given:
            return compile_cached(data, os.fspath(path))
        return compiled(loader, data, path, **given)

    importlib.machinery.SourceFileLoader.source_to_code = code_of  # type: ignore[method-assign, assignment]
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _solve_here(workers: Any, digest: str, problem: Any) -> Any:
    """The options of a block, solved in this process: another one would take longer to start."""
    from tightfit.stages.solve.option_store import solve_into_store

    engine, grid, made_by, link = workers.engine, workers.grid, workers.made_by, workers.link
    return solve_into_store(digest, problem, workers.store, engine, grid, made_by, link)
