"""A job server: a process that has loaded what some stages load, and forks one for each job.

`tightfit run` has one for each group of stages (see `job_client.SERVERS`), which starts with the
first of their jobs, `python -m tightfit.job_server NAME DESCRIPTOR`, and ends with the run. It
loads no module of a user and starts no thread of Python: a model's code is loaded in the process of
its job alone. What that loads of libraries of models (`MODEL_LIBRARIES`) the server `measurement`
loads for the next jobs.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import io
import json
import os
import selectors
import shutil
import signal
import socket
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tightfit.__main__ import STAGES, main
from tightfit.job_client import FOLDER_VARIABLE, LENGTH_BYTES, RUN_PIPE, SERVERS
from tightfit.util.processes import end_process

MODULES = {
    "trace": (
        "tightfit.stages.torch_utils.model_factory",
        "tightfit.stages.trace.trace",
    ),
    "generate": ("tightfit.stages.generate.package",),
    "planning": (
        "tightfit.stages.combine.frontier",
        "tightfit.stages.combine.select_plan",
        "tightfit.stages.report.model_page",
        "tightfit.stages.report.render",
    ),
    "measurement": (
        "tightfit.stages.torch_utils.model_factory",
        "tightfit.stages.validate.validate",
        "tightfit.stages.profile.profile",
    ),
}
"""What the stages of a server load when they run, beside `schemas.lineage`."""
SEARCH_MODULE = "tightfit.stages.combine.local_search.precompile"
"""The module that loads the compiled search of the server `planning`."""
MODEL_LIBRARIES = {"transformers", "torchvision", "timm", "diffusers"}
"""Packages of models that take seconds to load, by the name that they are imported by."""
MODULE_LIST_SUFFIX = ".modules"
"""How the name of the file ends, beside a server's address, in which jobs list what they loaded."""
OPENBLAS_THREADS = "OPENBLAS_NUM_THREADS"
"""The variable that says how many threads NumPy's library begins when it is loaded."""
THREADS_FOLDER = Path("/proc/self/task")
FORK_SAFE_THREADS = {"jemalloc_bg_thd"}
"""Threads by name that a library starts again in a forked process: jemalloc's, within pyarrow."""
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class ServedJob:
    """A job that runs: its process, and the connection to the one that waits for it."""

    process: int
    connection: socket.socket

    def signal_group(self, number: int) -> None:
        """Sends a signal to the process and those that it has begun."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process, number)


class JobServer:
    """Answers the calls of jobs until the run has ended."""

    def __init__(self, calls: socket.socket, run_pipe: int, module_list: Path) -> None:
        self.calls = calls
        self.module_list = module_list
        self.run_pipe = run_pipe
        self.selector = selectors.DefaultSelector()
        self.jobs: dict[socket.socket, ServedJob] = {}

    def serve(self) -> list[str] | None:
        """Returns in each process of a job with the words of its command line, and with None in
        this one when the run has ended."""
        self.selector.register(self.run_pipe, selectors.EVENT_READ)
        self.selector.register(self.calls, selectors.EVENT_READ)
        while True:
            for key, _ in self.selector.select():
                if key.fileobj == self.run_pipe:
                    for job in self.jobs.values():
                        job.signal_group(signal.SIGKILL)
                    return None
                if key.fileobj is self.calls:
                    words = self._accept()
                    if words is not None:
                        return words
                elif isinstance(key.fileobj, socket.socket):
                    if key.fileobj in self.jobs:  # else it ended just now
                        self._pass_signal(self.jobs[key.fileobj])
                else:
                    self._report_end(self.jobs[key.data], key.fd)

    def _accept(self) -> list[str] | None:
        """Begins a process for a job; returns the words of its command line there."""
        connection, _ = self.calls.accept()
        text, descriptors = b"", list[int]()
        with contextlib.suppress(OSError):  # who calls may have ended
            length, descriptors, _, _ = socket.recv_fds(connection, LENGTH_BYTES, 3)
            text = connection.recv(int.from_bytes(length), socket.MSG_WAITALL)
        server = os.getpid()
        process = os.fork() if text and can_fork() else -1
        if process == 0:
            self._enter_job(server, descriptors)
            connection.close()
            words: list[str] = json.loads(text)
            return words
        for descriptor in descriptors:
            os.close(descriptor)
        if process < 0:
            connection.close()
            return None
        with contextlib.suppress(OSError):  # it may have done so itself, or have ended
            os.setpgid(process, process)
        self.jobs[connection] = ServedJob(process, connection)
        self.selector.register(connection, selectors.EVENT_READ)
        self.selector.register(os.pidfd_open(process), selectors.EVENT_READ, connection)
        with contextlib.suppress(OSError):
            connection.send(b"\n")
        return None

    def _enter_job(self, server: int, descriptors: Sequence[int]) -> None:
        """In the new process: it has the open files of its job and no other one, and ends with the
        server."""
        os.setpgid(0, 0)
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != server:
            os._exit(1)
        for place, descriptor in enumerate(descriptors):
            os.dup2(descriptor, place)
            os.close(descriptor)
        for key in self.selector.get_map().values():
            if isinstance(key.fileobj, socket.socket):
                key.fileobj.close()
            else:
                os.close(key.fd)
        self.selector.close()

    def _pass_signal(self, job: ServedJob) -> None:
        """Sends a job what its connection says; a job that nobody waits for is ended."""
        try:
            number = job.connection.recv(1)
        except OSError:
            number = b""
        if not number:
            self.selector.unregister(job.connection)
        job.signal_group(number[0] if number else signal.SIGKILL)

    def _report_end(self, job: ServedJob, descriptor: int) -> None:
        _, status = os.waitpid(job.process, 0)
        self.selector.unregister(descriptor)
        os.close(descriptor)
        with contextlib.suppress(KeyError):
            self.selector.unregister(job.connection)
        del self.jobs[job.connection]
        with contextlib.suppress(OSError):
            job.connection.send(str(os.waitstatus_to_exitcode(status)).encode())
        job.connection.close()
        self.load_libraries()

    def load_libraries(self) -> None:
        """Loads what jobs have loaded of libraries of models."""
        with contextlib.suppress(FileNotFoundError):
            names = self.module_list.read_text().split()
            self.module_list.unlink()
            for name in names:
                # What a job could load may fail here, where nothing of its model is there.
                with contextlib.suppress(Exception):
                    importlib.import_module(name)
            gc.collect()
            gc.freeze()


def can_fork() -> bool:
    """Whether this process has no other thread that a forked one would lack."""
    names = {path.joinpath("comm").read_text().strip() for path in _other_threads()}
    return names <= FORK_SAFE_THREADS


def _other_threads() -> list[Path]:
    return [path for path in THREADS_FOLDER.iterdir() if path.name != str(os.getpid())]


def run_server(name: str, calls: socket.socket) -> int:
    """Loads what the stages of a server load, and answers calls; in the process of a job, runs
    that. Returns the exit code."""
    run_pipe = os.open(Path(os.environ[FOLDER_VARIABLE], RUN_PIPE), os.O_RDONLY | os.O_NONBLOCK)
    gc.disable()
    threads = os.environ.get(OPENBLAS_THREADS)
    os.environ[OPENBLAS_THREADS] = "1"  # a thread that is begun here is in no forked process
    stages = [STAGES[stage][0] for stage in SERVERS[name]]
    for module in (*stages, *MODULES[name], "tightfit.schemas.lineage"):
        importlib.import_module(module)
    for module in getattr(sys.modules[stages[0]], "CAPTURE_MODULES", ()):
        importlib.import_module(module)
    if name == "planning":
        importlib.import_module(SEARCH_MODULE).load_compiled_search()
    del os.environ[OPENBLAS_THREADS]
    if threads is not None:
        os.environ[OPENBLAS_THREADS] = threads
    gc.freeze()
    gc.enable()
    module_list = Path(calls.getsockname()).with_suffix(MODULE_LIST_SUFFIX)
    words = JobServer(calls, run_pipe, module_list).serve()
    if words is None:
        # A run that was killed removes no folder.
        shutil.rmtree(os.environ[FOLDER_VARIABLE], ignore_errors=True)
        return 0
    sys.argv[1:] = words
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=sys.stdout.isatty())
    sys.modules["numpy"].random.seed()
    importlib.invalidate_caches()
    loaded = set(sys.modules)
    code = main(words)
    if name == "measurement" and code == 0:
        write_model_libraries(set(sys.modules) - loaded, module_list)
    return code


def write_model_libraries(modules: set[str], path: Path) -> None:
    """Writes which of the modules that a job has loaded are of libraries of models, if any are."""
    names = [name for name in sorted(modules) if name.partition(".")[0] in MODEL_LIBRARIES]
    if names:
        path.write_text("\n".join(names))


if __name__ == "__main__":
    end_process(run_server(sys.argv[1], socket.socket(fileno=int(sys.argv[2]))))
