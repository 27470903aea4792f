"""`make test` runs cases of each test, as many as take little time."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import case_times
from tests.case_times import measured_case_times, read_case_times, sample_cases


def names(function: str, count: int) -> list[str]:
    return [f"{function}[{number}]" for number in range(count)]


@pytest.mark.parametrize(
    ("seconds", "expected"), [(0.1, 10), (0.5, 10), (1.0, 5), (2.0, 2), (4.0, 1), (9.0, 1)]
)
def test_as_many_cases_run_as_take_little_time(seconds: float, expected: int) -> None:
    tests = names("tests/a/test_b.py::test_c", 10)
    chosen = sample_cases(tests, {"tests.a.test_b::test_c": seconds})
    assert len(chosen) == expected
    assert tests[0] in chosen


def test_what_is_not_known_runs_in_all_cases() -> None:
    tests = [*names("tests/test_b.py::test_c", 9), "tests/test_b.py::Tests::test_alone"]
    assert sample_cases(tests, {"tests.test_b::Tests::test_alone": 60.0}) == set(tests)


def test_times_are_medians_of_cases_that_ran(tmp_path: Path) -> None:
    def case(name: str, seconds: float, inner: str = "") -> str:
        return (
            f'<testcase classname="tests.test_b" name="{name}" time="{seconds}">{inner}</testcase>'
        )

    slow = case("test_c[a]", 30.0) + case("test_c[b]", 1.0) + case("test_c[c]", 3.2)
    left = case("test_c[d]", 0.0, "<skipped/>") + case("test_alone", 9.0)
    quick = case("test_quick[a]", 0.1) + case("test_quick[b]", 0.1)
    results = tmp_path / "results.xml"
    results.write_text(f"<testsuites><testsuite>{slow}{left}{quick}</testsuite></testsuites>")
    assert measured_case_times(results) == {"tests.test_b::test_c": 3.2}


def test_the_file_names_tests_that_are_there() -> None:
    """Else a renamed test would run in all of its cases, unnoticed."""
    for name in read_case_times():
        module, _, function = name.partition("::")
        source = case_times.FILE.parent.parent / f"{module.replace('.', '/')}.py"
        assert source.is_file() and f"def {function.rpartition('::')[2]}(" in source.read_text(), (
            name
        )
