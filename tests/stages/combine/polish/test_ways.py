"""Where a node has several forms, the search takes the one that is best for each further run."""

from __future__ import annotations

import pytest

from tests.stages.combine.moment.brute import optimum
from tightfit.schemas.problem import Alternative, Node, Problem, Repeat, Storage
from tightfit.stages.combine.polish.polisher import Polisher

SUM, NORM = 1, 2
"""What node 1 makes."""


def normed(*alternatives: Repeat) -> Problem:
    """Node 1 makes a sum and its norm, which later nodes read, and the backward in turn."""
    nodes = [
        Node(0, "forward", 1.0, 3, [], [0], [], False, True),
        Node(1, "forward", 4.0, 8, [0], [SUM, NORM], [], False, True),
        Node(2, "forward", 9.0, 5, [NORM], [3], [], False, True),
        Node(3, "forward", 9.0, 12, [SUM, 3], [4], [], False, True),
        Node(4, "loss", 0.0, 1, [4], [5], [], False, False),
        Node(5, "backward", 1.0, 2, [SUM, 5], [6], [], False, True),
        Node(6, "backward", 1.0, 14, [NORM, 6], [7], [], False, True),
        Node(7, "backward", 1.0, 2, [SUM, 7], [8], [], False, True),
    ]
    makers = [0, 1, 1, 2, 3, 4, 5, 6, 7]
    sizes = [3, 4, 4, 5, 3, 1, 2, 2, 2]
    storages = [
        Storage(size, maker, number in (4, 5), number == 8)
        for number, (size, maker) in enumerate(zip(sizes, makers, strict=True))
    ]
    found = [Alternative(1, len(nodes) + number, form) for number, form in enumerate(alternatives)]
    return Problem(nodes, storages, 0, found)


OF_THE_SUM = Repeat([SUM], [NORM], 1.0, 4)
SUM_ALONE = Repeat([0], [SUM], 1.5, 4)
WITHOUT_SUM = Repeat([0], [NORM], 2.0, 4)


@pytest.mark.parametrize(
    "forms",
    [[], [OF_THE_SUM], [SUM_ALONE], [WITHOUT_SUM], [OF_THE_SUM, SUM_ALONE, WITHOUT_SUM]],
    ids=["none", "of the sum", "sum alone", "without sum", "all"],
)
def test_the_search_finds_the_optimum_with_the_forms_that_there_are(forms: list[Repeat]) -> None:
    problem = normed(*forms)
    polisher = Polisher(problem)
    budget = polisher.measure(polisher.keep_all)[0]
    taken: set[int] = set()
    while (best := optimum(problem, budget)) is not None:
        found = polisher.refine([polisher.keep_all], budget)
        assert (found.peak <= budget, found.seconds) == (True, best), budget
        taken |= set(found.sequence) - set(polisher.keep_all)
        budget -= 1
    assert len(taken) == min(len(forms), 2)
