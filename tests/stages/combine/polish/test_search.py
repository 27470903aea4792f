from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.problem import Problem
from stages.combine.polish.arrays import arrays
from stages.combine.polish.kernel import memory_line
from stages.combine.polish.search import exchange, repair
from tests.stages.combine.problems import plain_line, problems


def padded(sequence: list[int]) -> np.ndarray:
    out = np.zeros(len(sequence) * 4 + 40, np.int32)
    out[: len(sequence)] = sequence
    return out


def line_of(problem: Problem, sequence: list[int], in_place: bool) -> tuple[list[int], float]:
    line = np.zeros(len(sequence), np.int64)
    _, seconds = memory_line(arrays(problem, in_place), padded(sequence), len(sequence), line)
    return line.tolist(), seconds


@settings(max_examples=200, deadline=None)
@given(problems(), st.booleans(), st.data())
def test_the_compiled_memory_line_is_the_plain_one(
    problem: Problem, in_place: bool, data: st.DataObject
) -> None:
    sequence = list(range(len(problem.nodes)))
    assert line_of(problem, sequence, in_place) == plain_line(problem, sequence, in_place)
    repeatable = [
        index
        for index, node in enumerate(problem.nodes)
        if node.repeatable and not arrays(problem, False).fixed_run[index]
    ]
    if repeatable:
        for node in data.draw(st.lists(st.sampled_from(repeatable), max_size=4)):
            first = sequence.index(node)
            sequence.insert(data.draw(st.integers(first + 1, len(sequence))), node)
        assert line_of(problem, sequence, in_place) == plain_line(problem, sequence, in_place)


@settings(max_examples=100, deadline=None)
@given(problems(), st.booleans(), st.integers(1, 100))
def test_search_keeps_sequences_valid_and_within_budget(
    problem: Problem, in_place: bool, percent: int
) -> None:
    start = list(range(len(problem.nodes)))
    line, _ = plain_line(problem, start, in_place)
    budget = max(line) * percent // 100
    a = arrays(problem, in_place)
    found, length, peak, spent, _ = repair(a, padded(start), len(start), budget, 100, np.inf)
    checked, total = plain_line(problem, found[:length].tolist(), in_place)
    assert max(checked) == peak
    assert abs(total - spent) < 1e-9
    assert set(found[:length].tolist()) >= {
        index
        for index, node in enumerate(problem.nodes)
        if node.phase == "loss" or a.fixed_run[index]
    }
    if peak <= budget:
        better, count, top, less = exchange(a, found, length, budget, 8)
        checked, total = plain_line(problem, better[:count].tolist(), in_place)
        assert max(checked) == top <= budget
        assert abs(total - less) < 1e-9
        assert less <= spent + 1e-9
