"""Runs the real Snakemake on the Snakefile of this checkout, in a temporary folder."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]

Run = Callable[..., subprocess.CompletedProcess[str]]


def snakemake(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Runs the workflow in a folder with the configuration `config.yaml` that is there."""
    command = [
        str(Path(sys.executable).with_name("snakemake")),
        *("--snakefile", str(ROOT / "Snakefile"), "--directory", str(folder)),
        *("--profile", str(ROOT / "workflow/profiles/default"), "--logger", "tightfit"),
        *("--configfile", str(folder / "config.yaml"), "--cores", "2", *options),
    ]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "workflow/progress")}
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


def stage(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Runs a stage by hand in a folder."""
    return subprocess.run(
        [sys.executable, "-m", "stages", *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )


def configure(folder: Path, document: dict[str, Any]) -> None:
    """Writes the configuration of a folder."""
    (folder / "config.yaml").write_text(yaml.safe_dump(document, sort_keys=False))


@pytest.fixture(scope="session")
def tiny() -> dict[str, Any]:
    """A model small enough to be planned in seconds."""
    return {
        "factory": "data.models:gpt2",
        "arguments": {
            "layers": 2, "width": 64, "heads": 2, "vocabulary": 100, "batch": 2, "tokens": 16
        },
    }  # fmt: skip
