"""The pages in a real browser, where there is one: the script runs and chooses what is shown."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from stages.report.index import run_index
from stages.report.load import load_model, load_run
from stages.report.page import model_page
from stages.report.render import render_index, render_model
from tests.stages.report.cases import small_graph, write_results

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), "")

pytestmark = pytest.mark.skipif(not BROWSER, reason="there is no chromium on this machine")


def shown(page: Path, profile: Path, fragment: str = "") -> tuple[str, str]:
    """The document after the script ran, and what the browser logged."""
    done = subprocess.run(
        [
            BROWSER,
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            "--enable-logging=stderr",
            f"--user-data-dir={profile}",
            "--dump-dom",
            f"{page.as_uri()}{fragment}",
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    return done.stdout, "\n".join(line for line in done.stderr.splitlines() if "CONSOLE" in line)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    write_results(folder / "small", small_graph())
    return folder


def test_a_link_opens_its_plan(results: Path, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    page.write_text(render_model(model_page(load_model(results / "small"))))
    document, complaints = shown(page, tmp_path / "profile", "#plan-unplanned-none")
    assert complaints == ""
    assert document.count('class="surface long panel open"') == 1
    assert 'class="surface long panel open" id="plan-unplanned-none"' in document
    assert '<tr data-plan="plan-unplanned-none" class="chosen">' in document


def test_the_index_counts_its_rows(results: Path, tmp_path: Path) -> None:
    page = tmp_path / "index.html"
    page.write_text(render_index(run_index(load_run(results))))
    document, complaints = shown(page, tmp_path / "profile")
    assert complaints == ""
    assert ">4 of 4</span>" in document
    assert 'data-theme="' in document
