"""Sequences that do what solutions of the program say."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from tightfit.schemas.graph.planning_graph import (
    PlanningGraph,
    PlanningNode,
    PlanningStorage,
    RecomputeVariant,
)
from tightfit.stages.combine.bounds.cut_program import sequence_from_solution
from tightfit.stages.combine.milp import ONE_TERM


def node(
    op: int, inputs: list[int], outputs: list[int], repeat: RecomputeVariant | None = None
) -> PlanningNode:
    phase: Any = "loss" if op == 1 else "forward" if op == 0 else "backward"
    return PlanningNode(op, phase, 1.0, 10, inputs, outputs, [], False, True, repeat)


def test_what_nothing_makes_again_is_there_where_it_is_read() -> None:
    """A further run of the first node brings back one of its two outputs alone."""
    storages = [PlanningStorage(10, maker, False, False) for maker in (0, 0, 1, 2)]
    back = RecomputeVariant([], [1], 0.0, 10)
    nodes = [node(0, [], [0, 1], back), node(1, [0], [2]), node(2, [0, 1, 2], [3])]
    program: Any = SimpleNamespace(
        intervals=SimpleNamespace(moments=[1, 2]),
        last=2,
        kept={(2, 2): ONE_TERM},
        first={(0, 0): ONE_TERM, (1, 1): ONE_TERM, (2, 2): ONE_TERM},
    )
    assert sequence_from_solution(program, [], PlanningGraph(nodes, storages, 0)) == [0, 1, 0, 2]
