"""The planning view of a graph: what stands for each op, and what ties ops together."""

from __future__ import annotations

from dataclasses import replace as with_fields

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.stages.combine.problems import problems, two_layers
from tests.stages.simulate.problem_graphs import batch_norm, graph_of, three_parts, with_flags
from tightfit.schemas.costs import Costs, OpCost, op_cost_key
from tightfit.schemas.graph.op_arguments import encode_arguments
from tightfit.schemas.graph.planning_graph import (
    InPlaceVariant,
    PlanningGraph,
    PlanningNode,
    PlanningStorage,
    RecomputeVariant,
)
from tightfit.schemas.graph.training_graph import NO_VALUE, Graph, OwnedGradient
from tightfit.stages.simulate.planning_graph import build_planning_graph
from tightfit.util.errors import ArtifactError


@settings(max_examples=100, deadline=None)
@given(problems(alternatives=True), st.booleans())
def test_a_graph_that_spells_out_a_problem_is_condensed_to_it(
    problem: PlanningGraph, views: bool
) -> None:
    condensed = build_planning_graph(*graph_of(problem, views))
    # The storage that is further is the parameter's, which gradients are of.
    further = condensed.storages[len(problem.storages) :]
    assert further == [PlanningStorage(1, NO_VALUE, False, False)]
    assert condensed.storages[: len(problem.storages)] == problem.storages
    assert [with_fields(node, op=position) for position, node in enumerate(condensed.nodes)] == [
        with_fields(node, op=position) for position, node in enumerate(problem.nodes)
    ]
    assert condensed.state_bytes == problem.state_bytes
    assert [(other.node, other.form) for other in condensed.alternatives] == [
        (other.node, other.form) for other in problem.alternatives
    ]


def test_views_are_no_nodes_and_nodes_name_their_ops() -> None:
    graph, costs = graph_of(two_layers(), views=True)
    assert [node.op for node in build_planning_graph(graph, costs).nodes] == [
        op.id for op in graph.ops if not graph.is_view(op)
    ]


def test_the_loss_reads_outputs_that_it_does_nothing_with() -> None:
    graph, costs = with_flags()
    problem = build_planning_graph(graph, costs)
    assert problem.nodes[problem.loss].inputs == [1, 4]
    assert graph.ops[problem.nodes[problem.loss].op].inputs == [1]


def test_further_contributions_are_made_once_one_after_the_other() -> None:
    graph, costs = three_parts()
    problem = build_planning_graph(graph, costs)
    assert [node.repeatable for node in problem.nodes] == [True, False, False, False, False]
    first, second = len(graph.storages), len(graph.storages) + 1
    assert problem.storages[first:] == [
        PlanningStorage(0, 2, held=False, gradient=False),
        PlanningStorage(0, 3, held=False, gradient=False),
    ]
    assert [node.outputs for node in problem.nodes[2:]] == [[2, first], [3, second], [4]]
    assert [node.inputs for node in problem.nodes[2:]] == [[1], [1, first], [1, second]]
    assert [storage.gradient for storage in problem.storages[2:5]] == [True, False, False]


def test_further_contributions_are_not_tied_where_they_need_no_order() -> None:
    graph, costs = three_parts()
    problem = build_planning_graph(graph, costs, ordered=False)
    assert len(problem.storages) == len(graph.storages)
    assert [node.repeatable for node in problem.nodes] == [True, False, False, False, False]
    assert [node.outputs for node in problem.nodes[2:]] == [[2], [3], [4]]


def test_what_reads_a_contribution_runs_before_the_next_one_is_made() -> None:
    nodes = [
        PlanningNode(0, "forward", 1.0, 4, [], [0], [], False, True),
        PlanningNode(1, "loss", 0.0, 4, [0], [1], [], False, False),
        PlanningNode(2, "backward", 1.0, 4, [1], [2], [], False, True),
        PlanningNode(3, "backward", 1.0, 4, [2], [3], [], False, True),
        PlanningNode(4, "backward", 1.0, 4, [1], [4], [], False, True),
    ]
    storages = [PlanningStorage(4, index, index in (0, 1), index > 1) for index in range(5)]
    graph, costs = graph_of(PlanningGraph(nodes, storages, 0), views=False)
    owner, other = (graph.gradients[place].value for place in (0, 1))
    parts = [OwnedGradient(owner, 2), OwnedGradient(other, 3), OwnedGradient(owner, 4)]
    problem = build_planning_graph(with_fields(graph, gradients=parts), costs)
    waits = {problem.storages[storage].producer for storage in problem.nodes[4].inputs}
    assert waits == {1, 2, 3}
    assert not problem.nodes[3].repeatable


def test_one_op_may_make_several_contributions() -> None:
    nodes = [
        PlanningNode(0, "forward", 1.0, 4, [], [0], [], False, True),
        PlanningNode(1, "loss", 0.0, 4, [0], [1], [], False, False),
        PlanningNode(2, "backward", 1.0, 8, [1], [2, 3], [], False, True),
    ]
    makers = (0, 1, 2, 2)
    storages = [
        PlanningStorage(4, maker, place < 2, place > 1) for place, maker in enumerate(makers)
    ]
    graph, costs = graph_of(PlanningGraph(nodes, storages, 0), views=False)
    owner = graph.gradients[0].value
    parts = [OwnedGradient(owner, part) for part in (2, 3)]
    problem = build_planning_graph(with_fields(graph, gradients=parts), costs)
    assert problem.nodes[2].repeatable
    assert problem.nodes[2].outputs == [2, 3]
    assert [storage.gradient for storage in problem.storages[:4]] == [False, False, True, False]


def test_contributions_in_another_order_are_refused() -> None:
    graph, costs = three_parts()
    backwards = with_fields(graph, gradients=graph.gradients[::-1])
    for ordered in (False, True):
        with pytest.raises(ArtifactError, match="are not made in their order"):
            build_planning_graph(backwards, costs, ordered)


def with_reader(graph: Graph, costs: Costs, value: int) -> tuple[Graph, Costs]:
    """The graph with one op more, which reads `value` and may overwrite it, or value 1."""
    last = graph.ops[-1]
    reads = [value, 1]
    reader = with_fields(
        last,
        id=len(graph.ops),
        arguments=encode_arguments([{"value": read} for read in reads], {}),
        inputs=reads,
        outputs=[],
        in_place=reads,
    )
    graph = with_fields(graph, ops=[*graph.ops, reader])
    rows = [
        OpCost(op_cost_key(graph, reader, form), "", NO_VALUE, 2.0, 0.0, peak, 0)
        for form, peak in ((NO_VALUE, 9), (value, 5), (1, 6))
    ]
    return graph, Costs([*costs.rows.values(), *rows], costs.device)


def test_a_further_contribution_is_not_overwritten() -> None:
    for value, reuses in (
        (2, [InPlaceVariant(2, 2.0, 5), InPlaceVariant(1, 2.0, 6)]),
        (3, [InPlaceVariant(1, 2.0, 6)]),
    ):
        graph, costs = with_reader(*three_parts(), value)
        assert build_planning_graph(graph, costs).nodes[-1].reuses == reuses


def test_what_the_loss_leaves_beyond_its_tangents_is_held() -> None:
    graph, costs = graph_of(two_layers(), views=False)
    loss = next(op for op in graph.ops if op.phase == "loss")
    key = op_cost_key(graph, loss)
    rows = [with_fields(row, net=7) if row.key == key else row for row in costs.rows.values()]
    problem = build_planning_graph(graph, Costs(rows, costs.device))
    assert problem.storages[len(graph.storages) :] == [PlanningStorage(7 - 4, 2, True, False)]
    assert problem.nodes[2].outputs == [2, len(graph.storages)]
    assert len(build_planning_graph(graph, costs).storages) == len(graph.storages)


def test_costs_of_a_loss_that_makes_less_are_refused() -> None:
    graph, costs = graph_of(two_layers(), views=False)
    key = op_cost_key(graph, next(op for op in graph.ops if op.phase == "loss"))
    rows = [with_fields(row, net=3) if row.key == key else row for row in costs.rows.values()]
    with pytest.raises(
        ArtifactError, match=r"the loss leaves 3 bytes, and the gradients .* take 4"
    ):
        build_planning_graph(graph, Costs(rows, costs.device))


def test_a_node_that_runs_again_in_a_shorter_form_says_so() -> None:
    graph, costs = batch_norm(loss=True)
    problem = build_planning_graph(graph, costs)
    assert problem.nodes[1].inputs == [0]
    assert problem.nodes[1].outputs == [5, 6, 7]
    assert problem.nodes[1].reuses == [InPlaceVariant(0, 1.0, 8)]
    assert problem.nodes[1].repeat == RecomputeVariant([0, 6, 7], [5], 0.25, 16)
    assert problem.nodes[0].repeat is None
