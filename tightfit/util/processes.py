"""Which stages run: each keeps its file for errors locked, which ends with the process."""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path


def lock_file(path: Path | None) -> contextlib.ExitStack:
    """Keeps a file locked until what comes back is closed, or the process ends, however it does;
    keeps nothing where there is no file, or the file system has no locks."""
    kept = contextlib.ExitStack()
    if path is not None:
        with contextlib.suppress(OSError):
            file = kept.enter_context(path.open("rb"))
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return kept


def is_file_locked(path: Path | None) -> bool:
    """Whether a process keeps a file locked, as far as can be seen from here."""
    if path is None:
        return False
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def usable_cores() -> int:
    """The processors that this process may run on."""
    return len(os.sched_getaffinity(0))
