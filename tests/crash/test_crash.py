"""A run that is killed and begun again, alone and beside another one: the same bytes. What is
killed are programs as people call them; the other runs have those that start at once, but for
`make crash`, which kills thirty runs."""

from __future__ import annotations

import random
import time
from dataclasses import replace
from pathlib import Path

import pytest

from tests.crash.checkout_copy import Place


def test_a_step_that_was_killed_is_done_again(tmp_path: Path, programs: Path) -> None:
    place = Place.make(tmp_path / "checkout", tmp_path / "store")
    graph = "results/tower/graph.arrow"
    running = place.start_target(graph)
    while not place.told() and running.poll() is None:
        time.sleep(0.02)
    time.sleep(random.uniform(0, 1))
    assert place.kill(running)
    assert not (place.folder / graph).exists()
    place = replace(place, programs=programs)
    place.end(place.start_target(graph))
    assert place.told() == 2 * ["tower: tracing the training step"]
    first = (place.folder / graph).read_bytes()
    place.forget()
    place.end(place.start_target(graph))
    assert (place.folder / graph).read_bytes() == first


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory, programs: Path) -> tuple[Place, Place]:
    """Two folders with one store, planned at the same time, the second up to its modules; the run
    in the first is killed at some moment and begun again."""
    folder = tmp_path_factory.mktemp("crash")
    first = Place.make(folder / "first", folder / "store")
    second = Place.make(folder / "a" / "longer path" / "second", folder / "store", programs)
    undisturbed = second.start_modules()
    running, steps = first.start(), random.randint(1, 7)
    while len(first.told()) < steps and running.poll() is None:
        time.sleep(0.02)
    time.sleep(random.uniform(0, 1))
    assert first.kill(running)
    first = replace(first, programs=programs)
    first.run()
    second.end(undisturbed)
    return first, second


@pytest.mark.long
def test_a_run_that_was_killed_makes_the_same_plans_as_one_beside_it(
    places: tuple[Place, Place],
) -> None:
    first, second = places
    assert first.plans() == second.plans()
    assert {"tower/rockmate/70pct/plan.json", "tower/rockmate/70pct/module/step.py"} <= set(
        first.plans()
    )


@pytest.mark.long
def test_an_audit_finds_nothing_wrong(places: tuple[Place, Place]) -> None:
    for place in places:
        result = place.audit()
        assert result.returncode == 0, result.stdout
        assert "all is well with" in result.stdout
