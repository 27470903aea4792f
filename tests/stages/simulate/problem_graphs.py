"""Graphs that spell out a problem: an op a node, a value a storage, and views to read through."""

from __future__ import annotations

from dataclasses import replace as with_fields
from itertools import zip_longest

from tests.stages.combine.problems import two_layers
from tightfit.schemas.costs import (
    RANDOM_STATE_TARGET,
    RECOMPUTE_VARIANT,
    Costs,
    OpCost,
    ProfileDevice,
    op_cost_key,
)
from tightfit.schemas.graph.op_arguments import encode_arguments
from tightfit.schemas.graph.planning_graph import (
    PlanningGraph,
    PlanningNode,
    PlanningStorage,
    RecomputeAlternative,
    RecomputeVariant,
)
from tightfit.schemas.graph.training_graph import (
    LOSS_TARGET,
    NO_VALUE,
    Graph,
    GraphOutput,
    GraphValue,
    Op,
    OwnedGradient,
    ValueKind,
)

NOTHING = encode_arguments([], {})


def graph_of(
    problem: PlanningGraph, views: bool, view_seconds: float = 0.0, shared: bool = False
) -> tuple[Graph, Costs]:
    """A graph whose condensed form is the problem, and its costs; with `views`, every node reads
    its inputs through a view of them, which takes `view_seconds`; `shared` ones are read by all
    nodes that read the storage. Alternatives read values as they are. Value i is all of storage
    i."""
    values = [
        _value(
            index,
            storage.bytes,
            index,
            "tangent" if index in _tangents(problem) else "intermediate",
        )
        for index, storage in enumerate(problem.storages)
    ]
    ops: list[Op] = []
    rows: list[tuple[Op, int, float, int, int]] = []
    view_of: dict[int, int] = {}
    for node in problem.nodes:
        is_loss = node.phase == "loss"
        reads = list(node.inputs)
        if views and not is_loss:
            for place, storage in enumerate(reads):
                if shared and storage in view_of:
                    reads[place] = view_of[storage]
                    continue
                view = _value(len(values), problem.storages[storage].bytes, storage)
                values.append(view)
                ops.append(_op(len(ops), "aten.view.default", node.phase, [storage], [view.id]))
                rows.append((ops[-1], NO_VALUE, view_seconds, 0, 0))
                reads[place] = view_of[storage] = view.id
        value_of = dict(zip(node.inputs, reads, strict=True))
        overwritten = list(dict.fromkeys(value_of[reuse.storage] for reuse in node.reuses))
        op = Op(
            len(ops),
            LOSS_TARGET if is_loss else f"aten.op{node.op}.default",
            node.phase,
            encode_arguments([{"value": value} for value in reads], {}),
            reads,
            node.outputs,
            [],
            overwritten,
            node.random,
            node.repeatable or is_loss,
            "",
            "",
        )
        ops.append(op)
        made = sum(problem.storages[storage].bytes for storage in node.outputs)
        rows.append((op, NO_VALUE, node.seconds, node.peak, made))
        for value, reuse in zip(overwritten, node.reuses, strict=True):
            rows.append((op, value, reuse.seconds, reuse.peak, 0))
    alternatives: list[Op] = []
    for other in problem.alternatives:
        number = len(ops) + len(alternatives)
        target, form = f"aten.other{number}.default", other.form
        alternatives.append(_op(number, target, "forward", form.inputs, form.outputs))
        made = sum(problem.storages[storage].bytes for storage in form.outputs)
        rows.append((alternatives[-1], NO_VALUE, form.seconds, form.peak, made))
    gradients = []
    for index, room in enumerate(problem.storages):
        if room.gradient:
            owner = _value(len(values), 1, len(problem.storages), "parameter")
            values.append(owner)
            gradients.append(OwnedGradient(owner.id, index))
    loss = problem.nodes[problem.loss]
    graph = Graph(
        model="made up",
        device="cpu",
        torch="",
        has_loss=False,
        ops=ops,
        values=values,
        storages=[storage.bytes for storage in problem.storages] + [1],
        inputs=[],
        input_constants=[],
        outputs=[
            GraphOutput(value, tangent, "")
            for value, tangent in zip_longest(loss.inputs, loss.outputs, fillvalue=NO_VALUE)
        ]
        + [
            GraphOutput(index, NO_VALUE, "")
            for index, storage in enumerate(problem.storages)
            if storage.held and index not in loss.inputs + loss.outputs
        ],
        gradients=gradients,
        input_tree="",
        output_tree="",
        guards="{}",
        alternatives=alternatives,
    )
    costs = [
        OpCost(op_cost_key(graph, op, value), op.target, NO_VALUE, seconds, 0.0, peak, net)
        for op, value, seconds, peak, net in rows
    ]
    state = problem.state_bytes
    costs.append(OpCost("state", RANDOM_STATE_TARGET, NO_VALUE, 0.0, 0.0, state, state))
    return graph, Costs(costs, ProfileDevice("cpu", "paper", "", 1, "file"))


def _tangents(problem: PlanningGraph) -> list[int]:
    return problem.nodes[problem.loss].outputs


def _value(index: int, size: int, storage: int, kind: ValueKind = "intermediate") -> GraphValue:
    return GraphValue(index, kind, [size], [1], 0, "uint8", storage)


def _op(index: int, target: str, phase: str, inputs: list[int], outputs: list[int]) -> Op:
    arguments = encode_arguments([{"value": value} for value in inputs], {})
    return Op(index, target, phase, arguments, inputs, outputs, [], [], False, True, "", "")  # type: ignore[arg-type]


def three_parts() -> tuple[Graph, Costs]:
    """Op 0, the loss, and ops 2, 3 and 4, whose values 2, 3 and 4 add up to one gradient."""
    nodes = [
        PlanningNode(0, "forward", 1.0, 4, [], [0], [], False, True),
        PlanningNode(1, "loss", 0.0, 4, [0], [1], [], False, False),
        *(PlanningNode(op, "backward", 1.0, 4, [1], [op], [], False, True) for op in (2, 3, 4)),
    ]
    storages = [PlanningStorage(4, index, index in (0, 1), index > 1) for index in range(5)]
    graph, costs = graph_of(PlanningGraph(nodes, storages, 0), views=False)
    owner = graph.gradients[0].value
    return with_fields(graph, gradients=[OwnedGradient(owner, part) for part in (2, 3, 4)]), costs


def two_ways() -> tuple[Graph, Costs]:
    """Op 0 makes values 0 and 1, which the backward reads, ops 3 and 4, each one. Op 5, which takes
    a quarter of a second, makes value 1 again from value 0."""
    nodes = [
        PlanningNode(0, "forward", 1.0, 8, [], [0, 1], [], False, True),
        PlanningNode(1, "forward", 1.0, 4, [1], [2], [], False, True),
        PlanningNode(2, "loss", 0.0, 4, [2], [3], [], False, False),
        PlanningNode(3, "backward", 1.0, 4, [1, 3], [4], [], False, True),
        PlanningNode(4, "backward", 1.0, 4, [0, 4], [5], [], False, True),
    ]
    makers = [0, 0, 1, 2, 3, 4]
    storages = [PlanningStorage(4, maker, maker in (1, 2), maker == 4) for maker in makers]
    other = RecomputeAlternative(0, 5, RecomputeVariant([0], [1], 0.25, 4))
    return graph_of(PlanningGraph(nodes, storages, 0, [other]), views=False)


def with_flags() -> tuple[Graph, Costs]:
    """Two layers, and between them an op with whose result, an output, the loss does nothing."""
    problem = two_layers()
    first, second, loss, last = problem.nodes
    flags = PlanningNode(1, "forward", 1.0, 4, [0], [4], [], False, True)
    later = [with_fields(node, op=node.op + 1) for node in (second, loss, last)]
    made = [with_fields(s, producer=s.producer + (s.producer > 0)) for s in problem.storages]
    storages = [*made, PlanningStorage(4, 1, True, False)]
    return graph_of(with_fields(problem, nodes=[first, flags, *later], storages=storages), False)


def batch_norm(loss: bool = False) -> tuple[Graph, Costs]:
    """Op 0 makes value 0, op 1 normalizes it: its second run takes a quarter of a second. With
    `loss`, that of nothing follows."""
    graph, costs = graph_of(two_layers(), views=False)
    sizes = [16, 4, 4, 4, 4, 16, 4, 4]
    values = [GraphValue(index, "parameter", [1], [1], 0, "float32", index) for index in range(8)]
    for index, shape, strides in ((0, [2, 2], [2, 1]), (5, [2, 2], [2, 1]), (6, [1], [1])):
        values[index] = GraphValue(index, "intermediate", shape, strides, 0, "float32", index)
    values[7] = with_fields(values[6], id=7, storage=7)
    norm = with_fields(
        graph.ops[1],
        target="aten._native_batch_norm_legit_functional.default",
        arguments=encode_arguments([*({"value": v} for v in range(5)), True, 0.1, 1e-5], {}),
        inputs=[0, 1, 2, 3, 4],
        outputs=[5, 6, 7],
        in_place=[0],
    )
    ops = [graph.ops[0], norm]
    if loss:
        ops.append(with_fields(graph.ops[2], arguments=NOTHING, inputs=[], outputs=[]))
    graph = with_fields(graph, ops=ops, values=values, storages=sizes, outputs=[], gradients=[])
    forms = [(NO_VALUE, 1.0, 24), (0, 1.0, 8), (RECOMPUTE_VARIANT, 0.25, 16)]
    rows = [
        OpCost(op_cost_key(graph, norm, form), norm.target, NO_VALUE, seconds, 0.0, peak, peak)
        for form, seconds, peak in forms
    ]
    return graph, Costs([*costs.rows.values(), *rows], costs.device)
