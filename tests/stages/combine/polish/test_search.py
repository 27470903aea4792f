from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.graph import Phase
from schemas.problem import Node, Problem, Storage
from stages.combine.polish.arrays import arrays
from stages.combine.polish.kernel import memory_line
from stages.combine.polish.search import best_insertion, best_move, exchange, repair
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


def node(op: int, phase: Phase, inputs: list[int], output: int, **more: Any) -> Node:
    fields = {"seconds": 1.0, "peak": 0, "repeatable": False, **more}
    return Node(op, phase, fields["seconds"], fields["peak"], inputs, [output], [], False,
                fields["repeatable"])  # fmt: skip


def steps_of(problem: Problem, budget: int) -> tuple[Any, np.ndarray, int, np.ndarray, float]:
    """What the moves of the search are given for the captured order."""
    a, length = arrays(problem, False), len(problem.nodes)
    line = np.zeros(length, np.int64)
    _, seconds = memory_line(a, padded(list(range(length))), length, budget, line)
    return a, padded(list(range(length))), length, line, seconds


def test_a_move_costs_nothing() -> None:
    """Two large storages need not be there at once."""
    nodes = [
        node(0, "forward", [], 0, peak=10, repeatable=True),
        node(1, "forward", [], 1, peak=10, repeatable=True),
        node(2, "forward", [0], 2, peak=1, repeatable=True),
        node(3, "forward", [1], 3, peak=1, repeatable=True),
        node(4, "loss", [2, 3], 4, peak=1),
        node(5, "backward", [4], 5, peak=1),
    ]
    sizes = [10, 10, 1, 1, 1, 1]
    storages = [Storage(size, op, False, op == 5) for op, size in enumerate(sizes)]
    problem = Problem(nodes, storages, 0)
    a, start, length, line, seconds = steps_of(problem, 12)
    assert max(line) == 21
    best = np.zeros_like(start)
    assert best_move(a, start, length, 12, line, seconds, best) == length
    peaks, total = plain_line(problem, best[:length].tolist(), False)
    assert max(peaks) == 12 and total == seconds
    _, count, peak, spent, _ = repair(a, start, length, 12, 100, np.inf)
    assert (count, peak, spent) == (length, 12, seconds)


def test_an_insertion_is_worth_what_it_removes_for_its_time() -> None:
    """The larger storage would remove a little more and takes nine times as long to make again."""
    nodes = [
        node(0, "forward", [], 0, peak=10, seconds=0.9, repeatable=True),
        node(1, "forward", [], 1, peak=9, seconds=0.1, repeatable=True),
        node(2, "forward", [0, 1], 2, peak=1),
        node(3, "forward", [2], 3, peak=20),
        node(4, "loss", [3], 4, peak=1),
        node(5, "backward", [4, 0], 5, peak=1),
        node(6, "backward", [4, 1], 6, peak=1),
    ]
    sizes = [10, 9, 1, 1, 1, 1, 1]
    storages = [Storage(size, op, False, op >= 5) for op, size in enumerate(sizes)]
    a, start, length, line, seconds = steps_of(Problem(nodes, storages, 0), 30)
    best = np.zeros_like(start)
    count = best_insertion(a, start, length, 30, line, seconds, best)
    assert best[:count].tolist() == [0, 1, 2, 3, 4, 5, 1, 6]
