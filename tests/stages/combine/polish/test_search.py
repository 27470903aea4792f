from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.problem import Problem
from stages.combine.polish.arrays import arrays
from stages.combine.polish.kernel import memory_line
from stages.combine.polish.search import exchange, repair
from tests.stages.combine.problems import plain_line, problems, sequences


def padded(sequence: list[int]) -> np.ndarray:
    out = np.zeros(len(sequence) * 4 + 40, np.int32)
    out[: len(sequence)] = sequence
    return out


@settings(max_examples=300, deadline=None)
@given(problems(repeats=True), st.booleans(), st.integers(0, 60), st.data())
def test_the_compiled_memory_line_is_the_plain_one(
    problem: Problem, in_place: bool, room: int, data: st.DataObject
) -> None:
    sequence = data.draw(sequences(problem))
    line = np.zeros(len(sequence), np.int64)
    given = padded(sequence), len(sequence), room, line
    largest, seconds = memory_line(arrays(problem, in_place), *given)
    peaks, total = plain_line(problem, sequence, in_place, room)
    assert (line.tolist(), largest) == (peaks, max(peaks))
    assert abs(seconds - total) < 1e-9


@settings(max_examples=100, deadline=None)
@given(problems(repeats=True), st.booleans(), st.integers(1, 100))
def test_search_keeps_sequences_valid_and_within_budget(
    problem: Problem, in_place: bool, percent: int
) -> None:
    start = list(range(len(problem.nodes)))
    line, _ = plain_line(problem, start, in_place)
    budget = max(line) * percent // 100
    a = arrays(problem, in_place)
    found, length, peak, spent, _ = repair(a, padded(start), len(start), budget, 100, np.inf)
    checked, total = plain_line(problem, found[:length].tolist(), in_place, budget)
    assert max(checked) == peak
    assert abs(total - spent) < 1e-9
    assert set(found[:length].tolist()) >= {
        index
        for index, node in enumerate(problem.nodes)
        if node.phase == "loss" or a.fixed_run[index]
    }
    if peak <= budget:
        better, count, top, less = exchange(a, found, length, budget, 8)
        checked, total = plain_line(problem, better[:count].tolist(), in_place, budget)
        assert max(checked) == top <= budget
        assert abs(total - less) < 1e-9
        assert less <= spent + 1e-9
