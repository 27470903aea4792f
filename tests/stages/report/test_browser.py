"""The pages in a real browser, where there is one: the script runs and chooses what is shown."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.stages.report.browser import PROGRAM, Browser, running
from tests.stages.report.cases import small_graph, write_results
from tightfit.stages.report.index_page import RunIndex, build_run_index
from tightfit.stages.report.load import load_model_results, load_run_results
from tightfit.stages.report.model_page import build_model_page
from tightfit.stages.report.render import render_index, render_model

pytestmark = pytest.mark.skipif(not PROGRAM, reason="there is no chromium on this machine")

COPIES = 250
FIRST = "document.querySelector('#runs tbody tr:not([hidden])')"
VISIBLE = "[...document.querySelectorAll('#runs tbody tr')].filter(row => row.checkVisibility())"


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of one small model, with its pages."""
    folder = tmp_path_factory.mktemp("run")
    write_results(folder / "small", small_graph())
    (folder / "small/report.html").write_text(
        render_model(build_model_page(load_model_results(folder / "small")))
    )
    (folder / "index.html").write_text(render_index(build_run_index(load_run_results(folder))))
    return folder


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with running(tmp_path_factory.mktemp("profile")) as browser:
        yield browser


@pytest.fixture
def browser(started: Browser) -> Iterator[Browser]:
    """The browser, whose pages must have nothing to complain of."""
    started.complaints.clear()
    yield started
    assert started.complaints == []


@pytest.fixture
def thousand(results: Path) -> Path:
    """An index with the rows of the run many times over, each with another model and time."""
    index = build_run_index(load_run_results(results))
    rows = [
        replace(row, model=f"model{copy}", ratio=None if row.ratio is None else row.ratio + copy)
        for copy in range(COPIES)
        for row in index.rows
    ]
    assert len(rows) == 1000
    page = results / "thousand.html"
    many: RunIndex = replace(index, rows=rows, models=[f"model{copy}" for copy in range(COPIES)])
    page.write_text(render_index(many))
    return page


def column(browser: Browser, place: int) -> list[str]:
    """A column of the rows that are shown, top to bottom."""
    found: list[str] = browser.evaluate(f"{VISIBLE}.map(row => row.cells[{place}].dataset.value)")
    return found


def test_a_link_opens_its_plan(results: Path, browser: Browser) -> None:
    browser.open(f"{(results / 'small/report.html').as_uri()}#plan-keep_all-none")
    opened = browser.evaluate("[...document.querySelectorAll('.panel.open')].map(at => at.id)")
    assert opened == ["plan-keep_all-none"]
    chosen = browser.evaluate(
        "[...document.querySelectorAll('.chosen')].map(at => at.dataset.plan)"
    )
    assert chosen == ["plan-keep_all-none"]


def test_the_index_counts_its_rows(results: Path, browser: Browser) -> None:
    browser.open((results / "index.html").as_uri())
    assert browser.evaluate("document.getElementById('shown').textContent") == "4 of 4 rows"
    assert browser.evaluate("document.documentElement.dataset.theme") in ("light", "dark")


def test_a_thousand_rows_are_sorted(thousand: Path, browser: Browser) -> None:
    browser.open(thousand.as_uri())
    head = "#runs th:nth-child(7) button"
    browser.click(head)
    upwards = column(browser, 6)
    assert len(upwards) == 1000
    there = [float(value) for value in upwards if value]
    assert there == sorted(there)
    assert len(set(there)) >= COPIES
    assert upwards[len(there) :] == [""] * (1000 - len(there))
    browser.click(head)
    downwards = column(browser, 6)
    assert [float(value) for value in downwards if value] == there[::-1]
    assert downwards[len(there) :] == upwards[len(there) :]
    browser.click("#runs th:nth-child(1) button")
    models = list(dict.fromkeys(column(browser, 0)))
    assert models == [f"model{copy}" for copy in range(COPIES)]


def test_a_thousand_rows_are_filtered(thousand: Path, browser: Browser) -> None:
    browser.open(thousand.as_uri())
    browser.click("#search")
    browser.ask("Input.insertText", text="KEEP_ALL")
    assert set(column(browser, 1)) == {"keep_all"}
    assert browser.evaluate("document.getElementById('shown').textContent") == "250 of 1,000 rows"
    browser.evaluate(
        "(at => { at.value = 'model17'; at.dispatchEvent(new Event('change')) })"
        "(document.querySelector('select[data-key=model]'))"
    )
    assert column(browser, 0) == ["model17"]
    assert column(browser, 1) == ["keep_all"]


def test_a_link_of_the_index_leads_to_the_plan(thousand: Path, browser: Browser) -> None:
    browser.open(thousand.as_uri())
    wanted = browser.evaluate(f"{FIRST}.querySelector('a').getAttribute('href')")
    before = browser.loaded
    browser.click("#runs tbody a")
    browser.wait_for_page(before)
    address: str = browser.evaluate("location.href")
    assert address.endswith(f"/{wanted}")
    opened = browser.evaluate("document.querySelector('.panel.open').id")
    assert address.endswith(f"small/report.html#{opened}")
