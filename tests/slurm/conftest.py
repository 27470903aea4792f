"""A Slurm of one node for the tests of a module, where Slurm is installed."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Iterator

import pytest

from tests.slurm.cluster import PROGRAMS, Cluster, running
from tests.workflow.conftest import Workplace, tiny, workplace

__all__ = ["Workplace", "tiny", "workplace"]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """The cluster; what is started meanwhile finds it."""
    missing = [program for program in PROGRAMS if shutil.which(program) is None]
    if missing:
        pytest.skip(f"Slurm is not installed ({', '.join(missing)}): make slurm installs it")
    if importlib.util.find_spec("snakemake_executor_plugin_slurm") is None:
        pytest.skip("snakemake-executor-plugin-slurm is not installed")
    with running(tmp_path_factory.mktemp("slurm")) as made, pytest.MonkeyPatch.context() as patch:
        for name, value in made.environment().items():
            patch.setenv(name, value)
        yield made
