"""Work in a child process does what it does in this one, and leaves nothing here."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

import pytest

from tightfit.util import child_process
from tightfit.util.child_process import ChildProcess, can_fork
from tightfit.util.errors import ConfigError
from tightfit.util.progress import StageProgress

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _children(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child_process, "USE_CHILD_PROCESSES", True)


@dataclass(frozen=True)
class Writing:
    """Writes the number of its process, after it has reported twice; fails as it is told."""

    out: Path
    fails: str = ""
    home: int = 0

    def run(self, progress: StageProgress) -> None:
        if self.fails == "config":
            raise ConfigError("budget: is too small")
        if self.fails and os.getpid() != self.home:
            if self.fails == "exit":
                os._exit(3)
            raise RuntimeError("only there")
        for done in range(2):
            progress.report(done, 2, "writing")
        progress.note("written")
        with self.out.open("a") as file:
            file.write(f"{os.getpid()}\n")


class Listing(StageProgress):
    """Lists what it is told."""

    def __init__(self) -> None:
        self.told: list[object] = []

    def report(self, done: int, most: int, doing: str = "") -> None:
        self.told.append((done, most, doing))

    def note(self, text: str) -> None:
        self.told.append(text)


def test_tasks_run_in_one_process_and_tell_their_progress(tmp_path: Path) -> None:
    listing = Listing()
    with ChildProcess() as child:
        for _ in range(2):
            child.run(Writing(tmp_path / "out"), listing)
    first, second = (tmp_path / "out").read_text().split()
    assert first == second != str(os.getpid())
    assert listing.told == [(0, 2, "writing"), (1, 2, "writing"), "written"] * 2
    child.run(Writing(tmp_path / "out"), listing)
    assert (tmp_path / "out").read_text().split()[-1] == str(os.getpid())


@pytest.mark.parametrize("fails", ["error", "exit"])
def test_what_fails_there_runs_here(fails: str, tmp_path: Path) -> None:
    with ChildProcess() as child:
        child.run(Writing(tmp_path / "out", fails, os.getpid()), StageProgress())
    assert (tmp_path / "out").read_text().split() == [str(os.getpid())]


def test_an_error_of_tightfit_comes_back(tmp_path: Path) -> None:
    with ChildProcess() as child, pytest.raises(ConfigError, match="budget: is too small"):
        child.run(Writing(tmp_path / "out", "config"), StageProgress())


def test_a_function_is_called_there() -> None:
    with ChildProcess() as child:
        assert child.call(os.getpid) != os.getpid()


def test_an_interruption_reaches_the_call() -> None:
    """A call that has begun is interrupted through this process, and answers."""
    began, begin = os.pipe()

    def waits() -> str:
        try:
            os.write(begin, b"x")
            signal.pause()
        except KeyboardInterrupt:
            return "the best so far"
        return "not interrupted"

    def interrupt() -> None:
        os.read(began, 1)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    thread = threading.Thread(target=interrupt, daemon=True)
    thread.start()
    with ChildProcess() as child:
        assert child.call(waits) == "the best so far"
    thread.join()


def test_threads_that_compilation_leaves_are_no_hindrance() -> None:
    """`torch.compile` leaves a thread that waits for more to compile; a child has its own."""
    from torch._inductor.async_compile import AsyncCompile

    pool = AsyncCompile.pool()
    assert pool.submit(os.getpid).result() == os.getpid()
    assert any(thread in pool._threads and not thread.daemon for thread in threading.enumerate())
    assert can_fork()
    with ChildProcess() as child:
        compiled_in = child.call(lambda: AsyncCompile.pool().submit(os.getpid).result(60))
    assert compiled_in != os.getpid() and AsyncCompile.pool() is pool


def test_no_fork_where_another_thread_works() -> None:
    release = threading.Event()
    thread = threading.Thread(target=release.wait)
    thread.start()
    assert not can_fork()
    release.set()
    thread.join()
    assert can_fork()


def test_no_fork_where_it_is_not_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    assert can_fork()
    monkeypatch.setattr(child_process, "USE_CHILD_PROCESSES", False)
    with ChildProcess() as child:
        assert child.call(os.getpid) == os.getpid()


PLAN = """
import sys, torch, tightfit
torch.nn.Linear(64, 64)(torch.ones(512, 64)).sum().backward()
model = torch.nn.Sequential(*(torch.nn.Linear(16, 16) for _ in range(3))).train()
module, plan = tightfit.plan(model, (torch.randn(8, 16),), budget="min", progress=False,
                             store=sys.argv[1], solver=tightfit.SolverOptions(jobs=1))
module(torch.randn(8, 16)).sum().backward()
print(plan.status, sorted({"numba", "networkx"} & set(sys.modules)))
"""


def test_planning_leaves_no_search_in_the_process(tmp_path: Path) -> None:
    """Neither the search nor the capture is loaded in the process that plans."""
    command = [sys.executable, "-c", PLAN, str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split(maxsplit=1)[1].strip() == "[]", done.stdout


def test_one_thread_of_inductor_needs_no_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    import_module("torch._inductor.async_compile")
    monkeypatch.setattr("torch._inductor.config.compile_threads", 1)
    assert child_process._inductor_threads() == set()
