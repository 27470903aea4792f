"""The order in which nodes are put before neighbors are merged."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings

from tests.stages.partition.hierarchy.brute_force import edges
from tests.stages.partition.hierarchy.flows import Node, flow_of, random_flows, relabeled
from tightfit.stages.partition.hierarchy.arrays import ForwardGraph, node_items
from tightfit.stages.partition.hierarchy.canonical import canonical_order, topological_order


def order_of(*nodes: Node) -> list[int]:
    """The nodes, given in a topological order, as they are arranged."""
    flow = flow_of(nodes)
    return canonical_order(node_items(flow), np.zeros(flow.count, np.int64)).tolist()


def test_what_is_made_aside_comes_right_before_its_use() -> None:
    side: Node = ("side", [], [1])
    main: list[Node] = [("a", [], [1]), ("b", [1], [1]), ("c", [2], [1])]
    assert order_of(side, *main, ("x", [0, 3], [1])) == [1, 2, 3, 0, 4]


def test_inputs_as_deep_as_each_other_come_as_the_operands() -> None:
    assert order_of(("a", [], [1]), ("b", [], [1]), ("x", [1, 0], [1])) == [1, 0, 2]


def test_branches_stay_together() -> None:
    fork: list[Node] = [("a", [], [1]), ("l", [0], [1]), ("r", [0], [1])]
    further: list[Node] = [("l", [1], [1]), ("r", [2], [1]), ("x", [3, 4], [1])]
    assert order_of(*fork, *further) == [0, 1, 3, 2, 4, 5]


@given(random_flows())
@settings(max_examples=50, deadline=None)
def test_every_reader_comes_after_what_it_reads(flow: ForwardGraph) -> None:
    flow = relabeled(flow, np.arange(flow.count)[::-1])
    place = np.argsort(topological_order(node_items(flow)))
    assert all(place[first] < place[second] for first, second in edges(flow))
