"""Which stages run: each keeps its file for errors locked, which ends with the process. How the
process of one ends."""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import gc
import os
import sys
import threading
from pathlib import Path
from typing import NoReturn


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


def end_process(code: int) -> NoReturn:
    """Ends the process of a stage. Threads that a model's code has left do not hold it: Python
    waits for those that are no daemons, however long they go on."""
    gc.freeze()  # Python would look through all that PyTorch has loaded for garbage as it ends.
    left = {*threading.enumerate()} - {threading.main_thread()}
    if all(thread.daemon for thread in left):
        sys.exit(code)
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
