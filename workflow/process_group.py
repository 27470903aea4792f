"""`process_group.py COMMAND ...`: runs a command, and ends it with all that it has started.

An interrupt or a request to end goes to every process of the command as an interrupt; a further one
as a request to end, which also reaches what outlives the command then. All are waited for."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Iterator

TERMINATION_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
SUBREAPER = 36
"""PR_SET_CHILD_SUBREAPER of Linux: processes that lost their parent become children of this one."""


def run_process_group(command: list[str]) -> int:
    """Runs a command in a session of its own; returns its exit code, or 128 and the number of the
    signal that came."""
    if sys.platform == "linux":  # Elsewhere those that lost their parent are not waited for.
        ctypes.CDLL(None).prctl(SUBREAPER, 1, 0, 0, 0)
    came: list[int] = []

    def end(number: int, _: object) -> None:
        came.append(number)
        _signal_group(running.pid, signal.SIGINT if len(came) == 1 else signal.SIGTERM)

    with _signals_blocked():
        running = subprocess.Popen(
            command, start_new_session=True, preexec_fn=_reset_signal_handlers
        )
        for number in TERMINATION_SIGNALS:
            signal.signal(number, end)
    code = running.wait()
    if came:
        _signal_group(running.pid, signal.SIGTERM)
    with contextlib.suppress(ChildProcessError):
        while True:
            os.waitpid(-running.pid, 0)
    if came:
        return 128 + came[0]
    return code if code >= 0 else 128 - code


def _signal_group(group: int, number: int) -> None:
    """Sends a signal to what there is of a group of processes."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, number)


@contextlib.contextmanager
def _signals_blocked() -> Iterator[None]:
    """Within it signals wait, so that none comes before there is a process to end."""
    signal.pthread_sigmask(signal.SIG_BLOCK, TERMINATION_SIGNALS)
    yield
    signal.pthread_sigmask(signal.SIG_UNBLOCK, TERMINATION_SIGNALS)


def _reset_signal_handlers() -> None:
    """In the new process: signals do what they do, also where this process was to ignore them."""
    for number in TERMINATION_SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, TERMINATION_SIGNALS)


if __name__ == "__main__":
    sys.exit(run_process_group(sys.argv[1:]))
