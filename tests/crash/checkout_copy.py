"""A copy of the checkout in which a small configuration is planned, killed and planned again."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import yaml

from tests.workflow.conftest import copy_checkout

FACTORY = """
import torch


def tower(layers=6, width=32, batch=128):
    steps = []
    for _ in range(layers):
        steps += [torch.nn.Linear(width, width), torch.nn.GELU(), torch.nn.LayerNorm(width)]
    return torch.nn.Sequential(*steps).train(), ((torch.randn(batch, width),), {})
"""

PLANS = ("plan.json", "schedule.arrow", "sequence.arrow")
BINARIES = Path(sys.executable).parent
PATIENCE = 1800
"""Seconds after which a run is said to hang."""


@dataclass(frozen=True)
class Place:
    """A folder with the checkout in it, and the store that its runs use."""

    folder: Path
    store: Path
    programs: Path = BINARIES
    """Where `python` and `snakemake` are: those that people call, or the fixture `programs`, whose
    processes no kill of a run reaches."""

    @classmethod
    def make(cls, folder: Path, store: Path, programs: Path = BINARIES) -> Place:
        """Copies the checkout, with what was compiled of it, and configures a small run."""
        folder.mkdir(parents=True, exist_ok=True)
        copy_checkout(folder)
        (folder / "towers.py").write_text(FACTORY)
        document = {
            "models": {"tower": {"factory": "towers:tower"}},
            "budgets": ["70%"],
            "strategies": ["rockmate"],
            "solver": {"peaks": 2, "saves": 2},
            "pairs": 1,
            "store": str(store),
        }
        (folder / "small.yaml").write_text(yaml.safe_dump(document))
        return cls(folder, store, programs)

    def start(self) -> subprocess.Popen[bytes]:
        """Starts what `make plan` runs, in a session of its own."""
        run = ("-m", "tightfit", "run", "small.yaml", "--cores", "2")
        return self._start(str(self.programs / "python"), *run)

    def start_modules(self) -> subprocess.Popen[bytes]:
        """Starts the part of the workflow that ends with modules: nothing is validated."""
        return self.start_target("results/tower/rockmate/70pct/module")

    def start_target(self, target: str) -> subprocess.Popen[bytes]:
        """Starts the part of the workflow that ends with a file or folder of results."""
        profile = ("--profile", "workflow/profiles/default", "--logger", "tightfit")
        configuration = ("--configfile", "small.yaml", "--cores", "2", "--nolock")
        return self._start(str(self.programs / "snakemake"), *profile, *configuration, "--", target)

    def _start(self, *command: str) -> subprocess.Popen[bytes]:
        with (self.folder / "log.txt").open("ab") as log:
            return subprocess.Popen(
                command,
                cwd=self.folder,
                env={**os.environ, "PYTHONPATH": str(self.folder / "workflow/progress")},
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def told(self) -> list[str]:
        """The steps that all runs here have begun, in their words."""
        lines = (self.folder / "log.txt").read_text().splitlines()
        return [line.partition("] ")[2] for line in lines if line.startswith("[")]

    def run(self) -> float:
        """A run to its end, which must be a good one; returns its seconds."""
        started = time.monotonic()
        self.end(self.start())
        return time.monotonic() - started

    def end(self, running: subprocess.Popen[bytes]) -> None:
        """Waits for a run, which must end well."""
        if running.wait(timeout=PATIENCE) != 0:
            raise AssertionError((self.folder / "log.txt").read_text()[-4000:])

    def kill(self, running: subprocess.Popen[bytes]) -> bool:
        """Kills all processes of a run at once; False where it had ended by itself."""
        ended = running.poll() is not None
        if not ended:
            running.send_signal(signal.SIGSTOP)  # It begins no session meanwhile.
        sessions = _sessions(running.pid)
        if not ended:
            for process in _members(sessions):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
            running.wait()
        deadline = time.monotonic() + PATIENCE
        while left := _members(sessions):
            if time.monotonic() > deadline:
                raise AssertionError(f"the processes {left} outlive their run")
            time.sleep(0.05)
        return not ended

    def forget(self, profile: bool = False) -> None:
        """Back to before the first run, but for the profile unless that is to be forgotten too."""
        store = self.store if profile else self.store / "options"
        for path in (self.folder / "results", self.folder / ".snakemake", store):
            shutil.rmtree(path, ignore_errors=True)

    def audit(self) -> subprocess.CompletedProcess[str]:
        """Audits the results."""
        return subprocess.run(
            [str(self.programs / "python"), "-m", "tightfit", "audit", "results"],
            cwd=self.folder,
            capture_output=True,
            text=True,
            check=False,
        )

    def plans(self) -> dict[str, bytes]:
        """The content of all plans, sequences, schedules and modules."""
        results = self.folder / "results"
        return {
            str(path.relative_to(results)): path.read_bytes()
            for path in sorted(results.rglob("*"))
            if path.name in PLANS or (path.parent.name == "module" and _of_module(path))
        }


def _of_module(path: Path) -> bool:
    return path.is_file() and path.name != ".snakemake_timestamp"


def _sessions(leader: int) -> set[int]:
    """The sessions of a process and of those that it has started."""
    family, processes = {leader}, list(_processes())
    while more := {child for child, parent, _, _ in processes if parent in family} - family:
        family |= more
    return {leader, *(session for process, _, session, _ in processes if process in family)}


def _members(sessions: set[int]) -> list[int]:
    """The processes of some sessions, zombies left out."""
    return [
        process
        for process, _, session, state in _processes()
        if session in sessions and state != "Z"
    ]


def _processes() -> Iterator[tuple[int, int, int, str]]:
    """All processes, each with its parent, its session and its state."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except (FileNotFoundError, ProcessLookupError):
                continue  # it ended meanwhile
            yield int(entry.name), int(fields[1]), int(fields[3]), fields[0]
