"""Compiles the groups of a graph, and those that write over an input, at the same time, in
processes of their own.

A process takes seconds to begin, so that each has several groups. A caller's `__main__` is never
loaded again.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import count

import torch

from tightfit.paths import ROOT
from tightfit.schemas.groups import Body, body_text
from tightfit.stages.device.groups import is_compiled
from tightfit.stages.device.kernels import Over

EACH = 4
"""So many groups are worth a process."""


def compile_together(
    wanted: Iterable[tuple[Body, Over | None]],
    device: torch.device,
    jobs: int,
    report: Callable[[int], None],
) -> None:
    """Fills inductor's folder with the kernels of bodies that it lacks, in place where these write
    over an input, by at most so many processes; `report` is told how many are done. Does nothing
    where one process would do."""
    missing = [
        (body_text(body), over) for body, over in wanted if not is_compiled(body, device, over)
    ]
    processes = min(jobs, len(missing) // EACH)
    if processes < 2:
        return
    done = count(1)
    running: list[subprocess.Popen[str]] = []
    shares = [_task(missing[first::processes], device) for first in range(processes)]
    with ThreadPoolExecutor(max_workers=processes) as pool:
        try:
            for _ in pool.map(
                lambda task: _apart(task, running, lambda: report(next(done))), shares
            ):
                pass
        except BaseException:
            for process in running:
                process.kill()
            raise


def _task(kernels: Sequence[tuple[str, Over | None]], device: torch.device) -> str:
    task = {"kernels": kernels, "device": str(device), "threads": torch.get_num_threads()}
    return json.dumps(task)


def _apart(task: str, running: list[subprocess.Popen[str]], done: Callable[[], None]) -> None:
    """Has a process compile kernels; `done` is called for each. What it does not do is left."""
    paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    process = subprocess.Popen(
        [sys.executable, "-m", "tightfit.stages.fuse.worker"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
    )
    running.append(process)
    with process:
        _tell(process, task)
        for line in process.stdout or ():
            if line == "done\n":
                done()


def _tell(process: subprocess.Popen[str], task: str) -> None:
    """Gives a process its task; one that has ended already does not read it."""
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError):
        process.stdin.write(task)
        process.stdin.close()
