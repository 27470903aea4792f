"""The measured memory line keeps its bytes and takes the predicted clock."""

from __future__ import annotations

from itertools import groupby, pairwise

from hypothesis import given
from hypothesis import strategies as st

from tightfit.stages.report.memory_timeline import align_timeline

Line = list[tuple[float, int]]

LEVELS = [0, 10, 30, 20, 25, 60, 50, 40, 45, 5]
PREDICTED = [(float(index), level) for index, level in enumerate(LEVELS)]


def test_a_slow_and_uneven_clock_is_set_right() -> None:
    measured = [(0.5 + index**2, level) for index, level in enumerate(LEVELS)]
    assert align_timeline(measured, PREDICTED, 9.0)[:-1] == PREDICTED[:-1]
    assert align_timeline(measured, PREDICTED, 9.0)[-1][1] == 5


def test_what_differs_stays_visible_between_what_agrees() -> None:
    measured = [(2.0 * index, level) for index, level in enumerate(LEVELS)]
    measured[5] = (10.0, 99)
    line = align_timeline(measured, PREDICTED, 9.0)
    assert [level for _, level in line] == [*LEVELS[:5], 99, *LEVELS[6:]]
    assert 4.0 < line[5][0] < 6.0


def test_a_line_that_agrees_nowhere_is_stretched() -> None:
    measured = [(0.0, 1000), (5.0, 2000), (10.0, 3000)]
    assert align_timeline(measured, PREDICTED, 20.0) == [(0.0, 1000), (10.0, 2000), (20.0, 3000)]


def test_no_line() -> None:
    assert align_timeline([], PREDICTED, 9.0) == []
    assert align_timeline([(0.0, 5)], PREDICTED, 9.0) == []


def distinct(line: Line) -> list[int]:
    """The levels of a line, without repetitions in a row."""
    return [level for level, _ in groupby(level for _, level in line)]


@given(
    st.lists(st.tuples(st.floats(0, 5), st.integers(0, 4)), min_size=2, max_size=40),
    st.lists(st.tuples(st.floats(0, 5), st.integers(0, 4)), max_size=40),
)
def test_bytes_are_kept_and_time_does_not_fall(steps: Line, others: Line) -> None:
    def line(gaps: Line) -> Line:
        now, points = 0.0, list[tuple[float, int]]()
        for gap, level in gaps:
            now += gap
            points.append((now, level))
        return points

    measured, predicted = line(steps), line(others)
    seconds = predicted[-1][0] if predicted else 1.0
    moved = align_timeline(measured, predicted, seconds)
    if measured[-1][0] > 0:
        assert distinct(moved) == distinct(measured)
    times = [when for when, _ in moved]
    assert all(later >= earlier - 1e-9 for earlier, later in pairwise(times))
    assert all(-1e-9 <= when <= seconds + 1e-9 for when in times)
