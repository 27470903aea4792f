"""Doctored graphs are refused before anything runs."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

import pytest

from schemas.errors import ArtifactError
from schemas.graph import Graph, Op
from stages.device.check import check_program
from stages.device.factory import build
from stages.trace.trace import trace

MODULES = "tests.stages.trace.modules"


@functools.cache
def graph_of(name: str) -> Graph:
    return trace(build(f"{MODULES}:{name}", {}), name)


@pytest.mark.parametrize(
    "name", "structured transposed normalised watching counting tied shared noisy heads".split()
)
def test_true_graphs_pass(name: str) -> None:
    check_program(graph_of(name), "graph.arrow")


def with_op(graph: Graph, first: str, **changes: Any) -> Graph:
    ops = list(graph.ops)
    index = next(op.id for op in ops if op.target == first)
    ops[index] = replace(ops[index], **changes)
    return replace(graph, ops=ops)


def argument(op: Op, old: str, new: str) -> str:
    assert old in op.arguments
    return op.arguments.replace(old, new)


def test_doctored_graphs_do_not() -> None:
    graph = graph_of("normalised")
    [mean] = [op for op in graph.ops if op.target == "aten.mean.dim"]
    copies = [op for op in graph.ops if op.writes]
    doctored = [
        with_op(graph, "aten.relu.default", target="aten.no_such.default"),
        with_op(graph, "aten.relu.default", target="aten.nonzero.default"),
        with_op(graph, "aten.relu.default", target="aten.relu_.default"),
        with_op(graph, "aten.relu.default", target="aten.alias.default"),
        with_op(graph, "aten.mean.dim", arguments=argument(mean, "[2,3]", "[2]")),
        with_op(graph, "aten.mean.dim", arguments=argument(mean, "[2,3]", '"os"')),
        with_op(graph, "aten.mean.dim", arguments=argument(mean, "[2,3]", '{"call":"os"}')),
        with_op(graph, "aten.copy_.default", writes=[copies[-1].writes[0]]),
        with_op(graph, "aten.copy_.default", writes=[]),
        with_op(graph, "aten.copy_.default", target="aten.add.Tensor"),
        replace(graph, storages=[size // 2 for size in graph.storages]),
    ]
    for index, case in enumerate(doctored):
        with pytest.raises(ArtifactError, match=r"^graph\.arrow: "):
            check_program(case, "graph.arrow")
            pytest.fail(f"case {index} passes")
