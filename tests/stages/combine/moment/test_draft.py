"""Sequences that do what solutions of the program say."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from tightfit.schemas.problem import Node, Problem, Repeat, Storage
from tightfit.stages.combine.moment.draft import sequence_of
from tightfit.stages.combine.moment.matrix import ONE


def node(op: int, inputs: list[int], outputs: list[int], repeat: Repeat | None = None) -> Node:
    phase: Any = "loss" if op == 1 else "forward" if op == 0 else "backward"
    return Node(op, phase, 1.0, 10, inputs, outputs, [], False, True, repeat)


def test_what_nothing_makes_again_is_there_where_it_is_read() -> None:
    """A further run of the first node brings back one of its two outputs alone."""
    storages = [Storage(10, maker, False, False) for maker in (0, 0, 1, 2)]
    back = Repeat([], [1], 0.0, 10)
    nodes = [node(0, [], [0, 1], back), node(1, [0], [2]), node(2, [0, 1, 2], [3])]
    program: Any = SimpleNamespace(
        intervals=SimpleNamespace(moments=[1, 2]),
        last=2,
        kept={(2, 2): ONE},
        first={(0, 0): ONE, (1, 1): ONE, (2, 2): ONE},
    )
    assert sequence_of(program, [], Problem(nodes, storages, 0)) == [0, 1, 0, 2]
