"""Runs beside each other and runs that are killed: the same plans, byte for byte."""

from __future__ import annotations

import random
import time

import pytest

from tests.crash.place import Place


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> tuple[Place, Place]:
    """Two folders with one store, planned at the same time, the first by two runs at once."""
    folder = tmp_path_factory.mktemp("crash")
    first = Place.make(folder / "first", folder / "store")
    second = Place.make(folder / "a" / "longer path" / "second", folder / "store")
    running = [(place, place.start()) for place in (first, first, second)]
    for place, run in running:
        place.end(run)
    return first, second


def test_runs_at_once_on_one_store_make_the_same_plans(places: tuple[Place, Place]) -> None:
    first, second = places
    assert first.plans() == second.plans()
    assert {"tower/rockmate/70pct/plan.json", "tower/rockmate/70pct/module/step.py"} <= set(
        first.plans()
    )
    assert "Waiting for another run in this folder" in (first.folder / "log.txt").read_text()


def test_an_audit_finds_nothing_wrong(places: tuple[Place, Place]) -> None:
    for place in places:
        result = place.audit()
        assert result.returncode == 0, result.stdout
        assert "all is well with" in result.stdout


@pytest.mark.parametrize("job", [2, 6])
def test_a_run_that_was_killed_is_done_again(places: tuple[Place, Place], job: int) -> None:
    place, undisturbed = places
    place.forget()
    before = place.begun()
    running = place.start()
    while place.begun() < before + job and running.poll() is None:
        time.sleep(0.02)
    time.sleep(random.uniform(0, 2))
    assert place.kill(running)
    place.run()
    assert place.plans() == undisturbed.plans()
    assert place.audit().returncode == 0
