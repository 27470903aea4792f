"""Runs tests on a copy of the checkout with one fault in it."""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from tests.mutate.mutants import Mutant
from tests.mutate.rooms import Capacity
from tests.workflow.conftest import ROOT, copy_checkout

KILLED, SURVIVED, TIMED_OUT = "killed", "survived", "timed out"
OUTCOMES = (KILLED, SURVIVED, TIMED_OUT)
SLOWER, SLACK = 4, 60
"""Tests are said to hang when they take this many times what they take without a fault, and this
many seconds more."""

Tests = tuple[str, ...]


class TestsFailedError(Exception):
    """Tests that have to pass without a fault did not."""


@dataclass
class Copy:
    """A copy of the checkout in which mutants are tried, and what tests take there without a
    fault, in seconds."""

    folder: Path
    taken: dict[Tests, float] = field(default_factory=dict)

    @classmethod
    def make(cls, folder: Path) -> Copy:
        """Copies the checkout with its tests into a folder."""
        folder.mkdir(parents=True)
        shutil.copytree(ROOT / "tests", folder / "tests")
        for path in (path for path in ROOT.iterdir() if path.is_file()):
            shutil.copy2(path, folder / path.name)
        return cls(copy_checkout(folder))

    def outcome(self, room: Capacity, mutant: Mutant, quick: bool = False) -> str:
        """What becomes of a mutant in the tests of its room, the `quick` ones and those named
        like its file, or all."""
        found = SURVIVED
        groups = room.first(self.folder, mutant.file)
        for tests in groups:
            if found == SURVIVED:
                found = self.tried(room, mutant, tests, room.compiled)
        if found == SURVIVED and room.folders and not quick:
            ran = itertools.chain.from_iterable(groups)
            others = (*room.folders, *(f"--ignore={test}" for test in ran))
            found = self.tried(room, mutant, others, False)
        return found

    def tried(self, room: Capacity, mutant: Mutant, tests: Tests, plain: bool) -> str:
        """What becomes of a mutant in some tests; raises TestsFailedError where those fail without
        it."""
        limit = self.limit(room, tests, plain)
        path = self.folder / mutant.file
        text = path.read_text()
        try:
            path.write_text(mutant.text)
            code = self.run(room, tests, plain, limit)
        finally:
            path.write_text(text)
        return TIMED_OUT if code is None else KILLED if code else SURVIVED

    def limit(self, room: Capacity, tests: Tests, plain: bool) -> float:
        """Seconds that tests may take; runs them once without a fault to know."""
        if tests not in self.taken:
            started = time.monotonic()
            if self.run(room, tests, plain, None) != 0:
                raise TestsFailedError(f"without a fault, {' '.join(tests)} fail")
            self.taken[tests] = time.monotonic() - started
        return self.taken[tests] * SLOWER + SLACK

    def run(self, room: Capacity, tests: Tests, plain: bool, limit: float | None) -> int | None:
        """The exit code of pytest on tests, None where the limit ended it. Numba compiles what may
        be mutated into a folder of this run's own, or not at all where it is run as `plain`
        Python."""
        command = [sys.executable, "-m", "pytest", "-x", "-p", "no:cacheprovider"]
        with tempfile.TemporaryDirectory() as own:
            shared = self.folder.parent / "numba"
            environment = {
                **os.environ,
                "PYTHONPATH": str(self.folder),
                "PYTHONDONTWRITEBYTECODE": "1",
                "HYPOTHESIS_STORAGE_DIRECTORY": f"{own}/hypothesis",
                "NUMBA_CACHE_DIR": f"{own}/numba" if room.compiled else str(shared),
                "NUMBA_DISABLE_JIT": "1" if plain else "0",
                "TMPDIR": own,
            }
            process = subprocess.Popen(
                [*command, "--hypothesis-seed=0", *tests],
                cwd=self.folder,
                env=environment,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
            try:
                return process.wait(limit)
            except subprocess.TimeoutExpired:
                return None
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
