"""Runs the real Snakemake on the Snakefile of this checkout, in a temporary folder."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]

BINARIES = Path(sys.executable).parent
PARTS = ("Snakefile", "config.yaml", "workflow", "tightfit", "stages", "schemas", "data", "reports")


@dataclass(frozen=True)
class Workplace:
    """A copy of the checkout, and a folder to run its workflow in."""

    checkout: Path
    folder: Path
    programs: Path = BINARIES

    def snakemake(
        self, *options: str, profile: str = "default", logger: str = "tightfit"
    ) -> subprocess.CompletedProcess[str]:
        """Runs the workflow with the configuration `config.yaml` of the folder; the progress is
        told by a `logger`, by Snakemake's own where that is ""."""
        profiles = self.checkout / "workflow/profiles"
        command = [
            str(self.programs / "snakemake"),
            *("--snakefile", str(self.checkout / "Snakefile"), "--directory", str(self.folder)),
            *("--profile", str(profiles / profile), *(("--logger", logger) if logger else ())),
            *("--configfile", str(self.folder / "config.yaml"), "--cores", "2", *options),
        ]
        return self._run(command, self.checkout / "workflow/progress")

    def plan(self, *options: str) -> subprocess.CompletedProcess[str]:
        """Runs what `make plan` runs, with the configuration of the folder."""
        return self.stage("run", "config.yaml", "--cores", "2", *options)

    def stage(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Runs a command of tightfit."""
        return self._run([str(self.programs / "python"), "-m", "tightfit", *words], self.checkout)

    def configure(self, document: dict[str, Any]) -> None:
        """Writes the configuration."""
        (self.folder / "config.yaml").write_text(yaml.safe_dump(document, sort_keys=False))

    def _run(self, command: list[str], path: Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command,
            cwd=self.folder,
            env={**os.environ, "PYTHONPATH": str(path)},
            capture_output=True,
            text=True,
            check=False,
        )


def copy_checkout(folder: Path) -> Path:
    """Copies what a run needs of this checkout, compiled code too, into an empty folder."""
    for part in PARTS:
        if (ROOT / part).is_dir():
            shutil.copytree(ROOT / part, folder / part, symlinks=True)
        else:
            shutil.copy2(ROOT / part, folder / part)
    return folder


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Workplace:
    """A copy, so that what is edited meanwhile or by a test changes no other run."""
    return Workplace(
        copy_checkout(tmp_path_factory.mktemp("checkout")), tmp_path_factory.mktemp("run")
    )


@pytest.fixture(scope="module")
def quick(workplace: Workplace, programs: Path) -> Workplace:
    """A copy whose programs start at once; `tests/crash` runs the workflow by those that people
    have."""
    return replace(workplace, programs=programs)


@pytest.fixture(scope="session")
def tiny() -> dict[str, Any]:
    """A model small enough to be planned in seconds."""
    return {
        "factory": "data.models:gpt2",
        "arguments": {
            "layers": 2, "width": 64, "heads": 2, "vocabulary": 100, "batch": 2, "tokens": 16
        },
    }  # fmt: skip
