"""Whose results a folder holds."""

from __future__ import annotations

import time
from math import inf
from pathlib import Path

import pytest

from tightfit.schemas.results_claim import (
    CLAIM_FILE,
    CLAIMS_FILE,
    claim_results,
    find_claim_time,
)
from tightfit.util.errors import ConfigError


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path, Path]:
    """Results, and two folders of configurations."""
    mine, other = tmp_path / "mine", tmp_path / "other"
    for folder in (mine, other):
        (folder / CLAIMS_FILE).parent.mkdir(parents=True)
    return mine / "results", mine, other


def test_notes_count_from_the_last_claim_on(folders: tuple[Path, Path, Path]) -> None:
    results, mine, other = folders
    assert find_claim_time(results, mine) == 0.0
    claim_results(results, mine, dry_run=False)
    claim_results(results, mine, dry_run=False)
    assert find_claim_time(results, mine) == 0.0
    before = time.time()
    with pytest.raises(ConfigError, match=f"of configurations in {mine}: name another folder"):
        claim_results(results, other, dry_run=True)
    (results / CLAIM_FILE).unlink()
    claim_results(results, other, dry_run=True)
    assert find_claim_time(results, other) == 0.0
    claim_results(results, other, dry_run=False)
    assert find_claim_time(results, mine) == inf
    (results / CLAIM_FILE).unlink()
    claim_results(results, mine, dry_run=False)
    assert before <= find_claim_time(results, mine) <= time.time()


def test_a_copy_of_everything_keeps_its_claim(folders: tuple[Path, Path, Path]) -> None:
    results, mine, _ = folders
    claim_results(results, mine, dry_run=False)
    moved = mine.rename(mine.with_name("moved"))
    kept = (moved / "results" / CLAIM_FILE).read_text()
    claim_results(moved / "results", moved, dry_run=False)
    assert (moved / "results" / CLAIM_FILE).read_text() == kept
    link = moved.with_name("link")
    link.symlink_to(moved)
    (moved / "results" / CLAIM_FILE).write_text(".\nanother")
    assert find_claim_time(moved / "results", moved) == inf
    assert find_claim_time(link / "results", link) == inf


@pytest.mark.parametrize("text", ["", "{", "[]", '{"results": 3}', '{"results": "soon"}'])
def test_damaged_claims_are_made_again(folders: tuple[Path, Path, Path], text: str) -> None:
    results, mine, _ = folders
    claim_results(results, mine, dry_run=False)
    (mine / CLAIMS_FILE).write_text(text)
    claim_results(results, mine, dry_run=False)
    assert find_claim_time(results, mine) < inf
