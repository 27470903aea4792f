"""What `make test` leaves to `make test-long`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import draw_fewer_examples, mark_long

TESTS = """
import pytest
from hypothesis import given, settings, strategies as st

DRAWN = []


@pytest.mark.sample(3)
@pytest.mark.parametrize("number", range(7))
def test_each_third(number):
    pass


@pytest.mark.sample("kind")
@pytest.mark.parametrize("kind", ["a", "b"])
@pytest.mark.parametrize("number", range(3))
def test_first_of_each_kind(number, kind):
    pass


@pytest.mark.sample(2, "kind")
@pytest.mark.parametrize("kind", ["a", "b"])
@pytest.mark.parametrize("number", range(3))
def test_each_second_of_each_kind(number, kind):
    pass


@pytest.mark.parametrize("number", range(2))
@settings(max_examples=50, database=None)
@given(drawn=st.integers())
def test_property(number, drawn):
    DRAWN.append("many")


@settings(max_examples=8, database=None)
@given(st.integers())
def test_property_of_few(drawn):
    DRAWN.append("few")


@settings(max_examples=3, database=None)
@given(st.integers())
def test_property_of_fewer(drawn):
    DRAWN.append("fewer")
"""


class Collection:
    """A plugin that notes what pytest collects."""

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self.items = session.items


@pytest.fixture
def items(tmp_path: Path) -> list[pytest.Item]:
    """The tests of a file as pytest collects them without our conftest."""
    path = tmp_path / "test_some.py"
    path.write_text(TESTS)
    found = Collection()
    options = ["--collect-only", "--import-mode=importlib", "-c", "/dev/null"]
    assert pytest.main([str(path), *options, "-p", "no:cacheprovider"], plugins=[found]) == 0
    return found.items


def test_a_sample_is_not_long(items: list[pytest.Item]) -> None:
    mark_long(items)
    short = {item.name for item in items if not item.get_closest_marker("long")}
    assert {name for name in short if not name.startswith("test_property")} == {
        *(f"test_each_third[{number}]" for number in (0, 3, 6)),
        *(f"test_first_of_each_kind[0-{kind}]" for kind in "ab"),
        *(f"test_each_second_of_each_kind[{number}-{kind}]" for number in (0, 2) for kind in "ab"),
    }


def test_property_tests_draw_a_fifth_but_five_at_least(items: list[pytest.Item]) -> None:
    draw_fewer_examples(items)
    module = next(item.module for item in items if isinstance(item, pytest.Function))
    module.test_property(number=0)
    module.test_property_of_few()
    module.test_property_of_fewer()
    counts = [module.DRAWN.count(name) for name in ("many", "few", "fewer")]
    assert counts == [10, 5, 3]
