"""The ops that a sequence of operations on two blocks runs, written out."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tightfit.schemas.block_options import BlockOption
from tightfit.schemas.blocks import Block, Blocks
from tightfit.schemas.graph.planning_graph import PlanningGraph, PlanningNode, PlanningStorage
from tightfit.schemas.sequence import ChainOperation, OperationKind
from tightfit.stages.combine.lowering.blocks import captured_options, lower_to_executions

FIRST = Block("a", "", [1, 2], [9, 10], [], [], [], [], [], [], 0, 0, 0, 0, 0)
SECOND = Block("b", "", [3, 4, 5], [7, 8], [5], [], [], [], [], [], 0, 0, 0, 0, 0)
BLOCKS = Blocks("", [0], 0.0, 0, 6, 0.0, 0, [FIRST, SECOND], {})
"""Op 0 is the prelude, 6 the loss; op 5 runs in the second block's first forward only."""


def option(block: str, number: int, forward: list[int], backward: list[int]) -> BlockOption:
    seconds = float(len(forward))
    return BlockOption(
        block, number, "", 0, 0, 0, seconds, 1.0, 0.0, forward, backward, forward[-1:]
    )


OPTIONS = {
    "a": [option("a", 0, [0, 1], []), option("a", 1, [0, 1], [3, 4])],
    "b": [
        option("b", 0, [1, 0, 2], []),
        option("b", 1, [0, 1, 2], [0, 4, 5]),
        option("b", 2, [0, 1, 2], [4, 5]),
    ],
}


def problem(held: int = -1) -> PlanningGraph:
    """A step whose op `held` makes what the caller holds."""
    nodes = [PlanningNode(op, "forward", 1.0, 0, [], [op], [], False, True) for op in range(11)]
    return PlanningGraph(nodes, [PlanningStorage(1, op, op == held, False) for op in range(11)], 0)


def operation(words: str) -> ChainOperation:
    kind, block, number = (*words.split(), "-1")[:3]
    kinds: dict[str, OperationKind] = {
        "all": "F_all",
        "ck": "F_ck",
        "none": "F_none",
        "F": "F",
        "B": "B",
    }
    return ChainOperation(kinds.get(kind, "loss"), int(block), int(number))


@pytest.mark.parametrize(
    ("sequence", "executions"),
    [
        (["all 1", "all 2", "loss 3", "B 2", "B 1"], [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10]),
        (["all 1", "F 2 1", "loss 3", "B 2", "B 1"], [0, 1, 2, 3, 4, 5, 6, 3, 7, 8, 9, 10]),
        # A forward that its backward follows at once leaves out what only the output needs.
        (
            ["ck 1", "none 2", "loss 3", "F 2 2", "B 2", "all 1", "B 1"],
            [0, 1, 2, 4, 3, 5, 6, 3, 4, 7, 8, 1, 9, 10],
        ),
        # What runs once is left out; op 2 is needed where another operation comes between.
        (
            ["ck 1", "ck 2", "loss 3", "all 1", "all 2", "B 2", "B 1"],
            [0, 1, 2, 4, 3, 5, 6, 1, 2, 3, 4, 7, 8, 9, 10],
        ),
    ],
)
def test_operations_are_opened_into_ops(sequence: list[str], executions: list[int]) -> None:
    operations = [operation(words) for words in sequence]
    assert lower_to_executions(problem(), BLOCKS, OPTIONS, operations) == executions


def test_what_the_caller_holds_is_not_made_again() -> None:
    sequence = ["ck 1", "ck 2", "loss 3", "F 2 1", "B 2", "all 1", "B 1"]
    operations = [operation(words) for words in sequence]
    executions = lower_to_executions(problem(held=4), BLOCKS, OPTIONS, operations)
    assert executions == [0, 1, 2, 4, 3, 5, 6, 3, 3, 7, 8, 1, 9, 10]
    nothing = problem()
    nothing.nodes[4] = replace(nothing.nodes[4], outputs=[])
    assert lower_to_executions(nothing, BLOCKS, OPTIONS, operations).count(4) == 2


def test_a_block_as_it_was_captured() -> None:
    found = captured_options(BLOCKS, OPTIONS)
    rows = {
        digest: [(row.option, row.forward, row.backward) for row in found[digest]]
        for digest in "ab"
    }
    assert rows == {
        "a": [(0, [0, 1], []), (1, [0, 1], [3, 4])],
        "b": [(0, [0, 1, 2], []), (1, [0, 1, 2], [4, 5])],
    }
