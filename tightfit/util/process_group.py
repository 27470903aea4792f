"""Runs a command, and ends it with all that it has started."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO

TERMINATION_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
SUBREAPER = 36
"""PR_SET_CHILD_SUBREAPER of Linux: processes that lost their parent become children of this one."""
SIGNAL_CODE = 128
"""The exit code of a command that a signal has ended is this and the number of the signal."""


def run_process_group(
    command: Sequence[str],
    *,
    folder: Path | None = None,
    environment: Mapping[str, str] | None = None,
    output: IO[bytes] | None = None,
    inherited: Sequence[int] = (),
    meanwhile: Callable[[], object] | None = None,
) -> int:
    """Runs a command in a session of its own, and waits for all of its processes.

    An interrupt or a request to end goes to every process of the command as an interrupt; a further
    one as a request to end, which also reaches processes that outlive the command.

    Args:
        command: The program and its arguments.
        folder: The working directory of the command, that of this process if it is None.
        environment: Its environment variables, those of this process if it is None.
        output: A file for standard output and standard error together.
        inherited: Descriptors of open files that the command keeps open, too, such as locks.
        meanwhile: Work for this process while the command runs.

    Returns:
        The exit code of the command, or 128 and the number of the signal that came.

    Example:
        >>> run_process_group(["sh", "-c", "exit 3"])
        3
    """
    if sys.platform == "linux":  # Elsewhere processes that lost their parent are not waited for.
        ctypes.CDLL(None).prctl(SUBREAPER, 1, 0, 0, 0)
    came: list[int] = []

    def end(number: int, _: object) -> None:
        came.append(number)
        _signal_group(running.pid, signal.SIGINT if len(came) == 1 else signal.SIGTERM)

    with _restored_signals():
        with _blocked_signals():
            running = subprocess.Popen(
                command,
                cwd=folder,
                env=environment,
                stdout=output,
                stderr=output,
                pass_fds=inherited,
                start_new_session=True,
                preexec_fn=_reset_signal_handlers,
            )
            for number in TERMINATION_SIGNALS:
                signal.signal(number, end)
        try:
            if meanwhile is not None:
                meanwhile()
        finally:
            code = running.wait()
            if came:
                _signal_group(running.pid, signal.SIGTERM)
            with contextlib.suppress(ChildProcessError):
                while True:
                    os.waitpid(-running.pid, 0)
    if came:
        return SIGNAL_CODE + came[0]
    return code if code >= 0 else SIGNAL_CODE - code


def is_interrupted(code: int) -> bool:
    """Whether an exit code says that an interrupt or a request to end has ended a command."""
    return code - SIGNAL_CODE in TERMINATION_SIGNALS


def _signal_group(group: int, number: int) -> None:
    """Sends a signal to the processes of a group that are left."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, number)


@contextlib.contextmanager
def _restored_signals() -> Iterator[None]:
    """Behind it signals do again what they did ahead of it."""
    before = [(number, signal.getsignal(number)) for number in TERMINATION_SIGNALS]
    try:
        yield
    finally:
        for number, handler in before:
            signal.signal(number, handler)


@contextlib.contextmanager
def _blocked_signals() -> Iterator[None]:
    """Within it signals wait, so that none comes before there is a process to end."""
    signal.pthread_sigmask(signal.SIG_BLOCK, TERMINATION_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, TERMINATION_SIGNALS)


def _reset_signal_handlers() -> None:
    """In the new process: signals do what they do, also if this process was to ignore them."""
    for number in TERMINATION_SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, TERMINATION_SIGNALS)
