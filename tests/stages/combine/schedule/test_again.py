"""A node that runs again in another form: what search, opening and bounds make of it."""

from __future__ import annotations

import numpy as np
import pytest

from tightfit.schemas.problem import Node, Problem, Repeat, Storage
from tightfit.stages.combine.bounds import least_seconds_of_nodes
from tightfit.stages.combine.polish.arrays import arrays
from tightfit.stages.combine.polish.kernel import memory_line
from tightfit.stages.combine.polish.polisher import Polisher
from tightfit.stages.replay.line import executions


@pytest.fixture
def problem() -> Problem:
    """Node 0 makes 10 bytes and, for 1 byte more, what makes them again in a tenth of the time."""
    nodes = [
        Node(0, "forward", 10.0, 11, [], [0, 1], [], False, True, Repeat([1], [0], 1.0, 12)),
        Node(1, "forward", 1.0, 10, [0], [2], [], False, True),
        Node(2, "forward", 1.0, 4, [2], [3], [], False, False),
        Node(3, "loss", 0.0, 4, [3], [4], [], False, False),
        Node(4, "backward", 1.0, 4, [0, 4], [5], [], False, True),
        Node(5, "backward", 1.0, 4, [1, 5], [6], [], False, True),
    ]
    sizes = [10, 1, 10, 4, 4, 4, 4]
    makers = [0, 0, 1, 2, 3, 4, 5]
    storages = [
        Storage(size, maker, index in (3, 4), index == 6)
        for index, (size, maker) in enumerate(zip(sizes, makers, strict=True))
    ]
    return Problem(nodes, storages, state_bytes=0)


def line_of(problem: Problem, sequence: list[int]) -> tuple[list[int], int, float]:
    line = np.zeros(len(sequence), np.int64)
    peak, seconds = memory_line(
        arrays(problem, False), np.array(sequence, np.int32), len(sequence), 0, line
    )
    return line.tolist(), peak, seconds


def test_the_second_run_is_the_shorter_one_and_needs_what_the_first_left(problem: Problem) -> None:
    line, peak, seconds = line_of(problem, [0, 1, 2, 3, 0, 4, 5])
    assert seconds == 10 + 1 + 1 + 1 + 1 + 1
    # Before the second run there are 1 byte of the first, the output and the tangent.
    assert line == [11, 21, 15, 9, 9 + 12, 23, 17]
    assert peak == 23


def test_its_lifetimes_keep_what_the_first_left(problem: Problem) -> None:
    runs = executions(problem, [0, 1, 2, 3, 0, 4, 5], in_place=True)
    assert [run.drops for run in runs] == [[], [0], [2], [], [], [0], [1, 5]]


def test_polish_runs_it_again_where_memory_is_short(problem: Problem) -> None:
    polished = Polisher(problem).polish({}, 23)
    assert polished.sequence == [0, 1, 2, 3, 0, 4, 5]
    assert (polished.peak, polished.seconds) == (23, 15.0)


def test_the_bound_counts_the_shorter_form(problem: Problem) -> None:
    assert least_seconds_of_nodes(problem, 5 + 4) <= 15.0
