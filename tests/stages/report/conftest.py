"""Results that tests of reports read."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.stages.report.cases import small_graph, write_results


@pytest.fixture(scope="session")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The results of one model; they stay as they are."""
    folder = tmp_path_factory.mktemp("run") / "results"
    write_results(folder / "small", small_graph())
    return folder
