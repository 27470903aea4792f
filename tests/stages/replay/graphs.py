"""Graphs that spell out a problem: an op a node, a value a storage, and views to read through."""

from __future__ import annotations

from schemas.costs import RANDOM_STATE_TARGET, Cost, Costs, Device, op_key
from schemas.graph import (
    LOSS_TARGET,
    NONE,
    Gradient,
    Graph,
    Op,
    Output,
    Value,
    ValueKind,
    encode_arguments,
)
from schemas.problem import Problem


def graph_of(problem: Problem, views: bool, view_seconds: float = 0.0) -> tuple[Graph, Costs]:
    """A graph whose condensed form is the problem, and its costs; with `views`, every node reads
    its inputs through a view of them, which takes `view_seconds`. Value i is all of storage i."""
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
    for node in problem.nodes:
        is_loss = node.phase == "loss"
        reads = list(node.inputs)
        if views and not is_loss:
            for place, storage in enumerate(reads):
                view = _value(len(values), problem.storages[storage].bytes, storage)
                values.append(view)
                ops.append(_op(len(ops), "aten.view.default", node.phase, [storage], [view.id]))
                rows.append((ops[-1], NONE, view_seconds, 0, 0))
                reads[place] = view.id
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
        rows.append((op, NONE, node.seconds, node.peak, made))
        for value, reuse in zip(overwritten, node.reuses, strict=True):
            rows.append((op, value, reuse.seconds, reuse.peak, 0))
    gradients = []
    for index, room in enumerate(problem.storages):
        if room.gradient:
            owner = _value(len(values), 1, len(problem.storages), "parameter")
            values.append(owner)
            gradients.append(Gradient(owner.id, index))
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
            Output(value, tangent, "")
            for value, tangent in zip(loss.inputs, loss.outputs, strict=True)
        ]
        + [
            Output(index, NONE, "")
            for index, storage in enumerate(problem.storages)
            if storage.held and index not in loss.inputs + loss.outputs
        ],
        gradients=gradients,
        input_tree="",
        output_tree="",
        guards="{}",
    )
    costs = [
        Cost(op_key(graph, op, value), op.target, NONE, seconds, 0.0, peak, net)
        for op, value, seconds, peak, net in rows
    ]
    state = problem.state_bytes
    costs.append(Cost("state", RANDOM_STATE_TARGET, NONE, 0.0, 0.0, state, state))
    return graph, Costs(costs, Device("cpu", "paper", "", 1, "file"))


def _tangents(problem: Problem) -> list[int]:
    return problem.nodes[problem.loss].outputs


def _value(index: int, size: int, storage: int, kind: ValueKind = "intermediate") -> Value:
    return Value(index, kind, [size], [1], 0, "uint8", storage)


def _op(index: int, target: str, phase: str, inputs: list[int], outputs: list[int]) -> Op:
    arguments = encode_arguments([{"value": value} for value in inputs], {})
    return Op(index, target, phase, arguments, inputs, outputs, [], [], False, True, "", "")  # type: ignore[arg-type]
