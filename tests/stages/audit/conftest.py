"""A run to look at, made once, and a copy of it for each test."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.stages.audit.towers import plan_everything


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("finished")
    plan_everything(folder)
    return folder


@pytest.fixture
def run(finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a run, which is the current one."""
    shutil.copytree(finished, tmp_path / "run")
    monkeypatch.chdir(tmp_path / "run")
    return tmp_path / "run"
