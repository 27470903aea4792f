"""Gives a job of the workflow to a job server, where the run has them: see `job_server`.

A job then starts in a process that has loaded PyTorch and the like; alone it would load these
itself. It has the environment, the folder and the open files that it would have alone.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from tightfit.util.process_group import TERMINATION_SIGNALS

FOLDER_VARIABLE = "TIGHTFIT_JOB_SERVERS"
"""The environment variable of the folder in which the servers of a run have their addresses."""
RUN_PIPE = "run"
"""The named pipe in that folder that a run keeps open for as long as it goes on."""
SERVERS = {
    "trace": ("trace",),
    "generate": ("generate",),
    "planning": ("partition", "combine", "select", "report"),
    "measurement": ("profile", "reference", "validate"),
}
"""The stages that each server takes jobs of. What is traced depends on the modules that are loaded:
`trace` has a server to itself."""
SINGLE_THREADED = {"trace", "generate", "planning"}
"""The servers that take jobs of one thread alone."""
SERVER_MODULE = "tightfit.job_server"
PROCESS_SUFFIX = ".pid"
"""How the names of files end that hold the process of a server."""
LENGTH_BYTES = 4
"""Bytes of a call ahead of the command line, which say how long it is."""
LOST_JOB = "the job server was ended while it ran this: run again what failed"


@contextlib.contextmanager
def offer_job_servers() -> Iterator[tuple[dict[str, str], int]]:
    """Within it jobs can have servers; at its end these have ended, too.

    Yields the environment variable that names their folder, and the descriptor of the pipe: servers
    end when every process that keeps it open has ended.
    """
    with tempfile.TemporaryDirectory(prefix="tightfit-jobs-") as folder:
        path = Path(folder, RUN_PIPE)
        os.mkfifo(path)
        pipe = os.open(path, os.O_RDWR)
        before = _find_children()
        try:
            yield {FOLDER_VARIABLE: folder}, pipe
        finally:
            files = path.parent.glob(f"*{PROCESS_SUFFIX}")
            servers = [int(text) for file in files if (text := file.read_text()).isdigit()]
            for server in servers:
                _end_session(server)
            os.close(pipe)
            for server in servers:
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(server, 0)
            _end_orphans(before)


def _end_orphans(before: set[int]) -> None:
    """Ends programs that jobs have begun in sessions of their own and left, which are children of
    this process then (see `run_process_group`), other than those that were there `before`."""
    known = set(before)
    while left := _find_children() - known:
        for process in left:
            try:
                if os.getsid(process) != os.getsid(0):
                    os.kill(process, signal.SIGKILL)
                    os.waitpid(process, 0)
            except (ProcessLookupError, ChildProcessError, PermissionError):
                pass
            known.add(process)


def _find_children() -> set[int]:
    """The children of this process; none where the system does not tell."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            if path.read_text().rpartition(")")[2].split()[1] == str(os.getpid()):
                found.add(int(path.parent.name))
    return found


def _end_session(server: int) -> None:
    """Ends what jobs of a server have begun and left, such as a program that a factory started,
    whether or not the server is still there."""
    with contextlib.suppress(OSError):
        command = Path(f"/proc/{server}/cmdline").read_bytes()
        if command and SERVER_MODULE.encode() not in command:
            return  # a process that came later has the number of the server
    for path in Path("/proc").iterdir():
        with contextlib.suppress(ValueError, ProcessLookupError, PermissionError):
            process = int(path.name)
            if process != server and os.getsid(process) == server:
                os.kill(process, signal.SIGKILL)


def run_on_server(words: Sequence[str]) -> int | None:
    """Has a server run the stage that a command line names.

    Jobs that call CUDA or a compiler run here, and so do jobs of several threads, unless they
    measure.

    Args:
        words: The command line behind `python -m tightfit`.

    Returns:
        The exit code; None where this process is to run the stage. Where a signal has ended the
        stage, it ends this process, too.
    """
    folder = os.environ.get(FOLDER_VARIABLE)
    name = find_server(words)
    if (
        sys.platform != "linux"
        or not folder
        or name is None
        or (name in SINGLE_THREADED and os.environ.get("OMP_NUM_THREADS") != "1")
        or sys.orig_argv[1:] != ["-m", "tightfit", *words]
        or any(word == "--libraries" or word.startswith("cuda") for word in words)
    ):
        return None
    came: list[int] = []
    code = None
    with contextlib.suppress(OSError):
        connection = connect_server(Path(folder), name)
        with connection, _forwarded_signals(connection, came):
            text = json.dumps(words).encode()
            socket.send_fds(connection, [len(text).to_bytes(LENGTH_BYTES)], [0, 1, 2])
            connection.sendall(text)
            if connection.recv(1):
                code = ""
                code = connection.makefile().read()
    if code == "":
        print(f"tightfit {words[0]}: {LOST_JOB}", file=sys.stderr)
        if "--error-file" in words[:-1]:
            log = Path(words[words.index("--error-file") + 1])
            log.write_text(f"{words[0]}: {LOST_JOB}\n")
        return 1
    if code is None:
        for number in came:
            os.kill(os.getpid(), number)
        return None
    if int(code) < 0:
        with contextlib.suppress(OSError):  # of what cannot be handled
            signal.signal(-int(code), signal.SIG_DFL)
        os.kill(os.getpid(), -int(code))
    return int(code)


def find_server(words: Sequence[str]) -> str | None:
    """The server of the stage that a command line names; None for one that has none, such as costs
    by description, which take no PyTorch."""
    if words[0] == "profile" and "roofline" in words:
        return None
    return next((name for name, stages in SERVERS.items() if words[0] in stages), None)


def connect_server(folder: Path, name: str) -> socket.socket:
    """A connection to the server of this environment and working directory, which is started for
    the first job. Raises OSError where there is none."""
    parts = [name.encode(), os.fsencode(Path.cwd())]
    parts += [b"=".join(entry) for entry in sorted(os.environb.items())]
    digest = hashlib.sha256(b"\0".join(parts)).hexdigest()
    address = folder / f"{name}-{digest[:16]}"
    if not address.exists():
        start_server(address, name)
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(str(address))
    return connection


def start_server(address: Path, name: str) -> None:
    """Starts a server, unless another job does so at the same time. Jobs can call at once: it
    answers them when it has loaded its modules."""
    ours = address.with_suffix(f".{os.getpid()}")
    with socket.socket(socket.AF_UNIX) as calls:
        calls.bind(str(ours))
        calls.listen(128)
        try:
            os.link(ours, address)
        except FileExistsError:
            return
        finally:
            ours.unlink()
        server = subprocess.Popen(
            [sys.executable, "-m", SERVER_MODULE, name, str(calls.fileno())],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=[calls.fileno()],
            start_new_session=True,
        )
    address.with_suffix(PROCESS_SUFFIX).write_text(str(server.pid))


@contextlib.contextmanager
def _forwarded_signals(connection: socket.socket, came: list[int]) -> Iterator[None]:
    """Within it requests to end go to the process of the job, and into a list."""

    def forward(number: int, _: object) -> None:
        came.append(number)
        with contextlib.suppress(OSError):
            connection.send(bytes([number]))

    before = {number: signal.signal(number, forward) for number in TERMINATION_SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
