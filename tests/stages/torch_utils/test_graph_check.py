"""Doctored graphs are refused before anything runs."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

import pytest

from tightfit.schemas.graph.training_graph import Graph, Op, check_graph
from tightfit.stages.torch_utils.graph_check import check_graph_program
from tightfit.stages.torch_utils.model_factory import build_from_factory
from tightfit.stages.trace.trace import trace
from tightfit.util.errors import ArtifactError

MODULES = "tests.stages.trace.modules"


@functools.cache
def graph_of(name: str) -> Graph:
    return trace(build_from_factory(f"{MODULES}:{name}", {}), name)


@pytest.mark.parametrize(
    "name", "structured transposed normalized watching counting tied shared noisy heads".split()
)
def test_true_graphs_pass(name: str) -> None:
    check_graph_program(graph_of(name), "graph.arrow")


def with_op(graph: Graph, first: str, **changes: Any) -> Graph:
    ops = list(graph.ops)
    index = next(op.id for op in ops if op.target == first)
    ops[index] = replace(ops[index], **changes)
    return replace(graph, ops=ops)


def argument(op: Op, old: str, new: str) -> str:
    assert old in op.arguments
    return op.arguments.replace(old, new)


def test_doctored_graphs_do_not() -> None:
    graph = graph_of("normalized")
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
            check_graph_program(case, "graph.arrow")
            pytest.fail(f"case {index} passes")


BEYOND = [
    ("aten.as_strided.default", "[2,3,4,4],[48,16,4,1],1"),
    ("aten.as_strided.default", "[2,3,4,4],[480,16,4,1]"),
    ("aten.as_strided.default", "[4611686018427387904,4],[0,0]"),
    ("aten.as_strided_copy.default", "[2,3,4,4],[480,16,4,1]"),
    ("prims.as_strided.default", "[2,3,4,4],[480,16,4,1],0"),
    ("aten.expand.default", "[4611686018427387904,3,4,4]"),
    ("aten.resize.default", "[1000]"),
    ("aten.resize_.default", "[1000]"),
    ("aten._copy_from.default", '{"value":0}'),
    ("aten.native_batch_norm.default", 'null,null,{"value":0},null,true,0.1,0.1'),
    ("aten.bernoulli.default", ""),
    ("aten.relu_.default", ""),
    ("aten.add_.Scalar", "1"),
]


@pytest.mark.parametrize(("target", "rest"), BEYOND)
def test_an_op_keeps_to_the_memory_of_what_it_reads(
    target: str, rest: str, capfd: pytest.CaptureFixture[str]
) -> None:
    graph = graph_of("normalized")
    op = next(op for op in graph.ops if op.target == "aten.relu.default")
    [read] = op.inputs
    rest = rest.replace('"value":0', f'"value":{read}')
    text = f'{{"args":[{{"value":{read}}}{"," + rest if rest else ""}],"kwargs":{{}}}}'
    doctored = with_op(graph, op.target, target=target, arguments=text)
    with pytest.raises(ArtifactError, match=r"^graph\.arrow: [^\n]*$"):
        check_graph_program(doctored, "graph.arrow")
    assert "Traceback" not in capfd.readouterr().err


@pytest.mark.parametrize("size", [2**40, 2**62, 2**63 - 1])
@pytest.mark.parametrize("kind", ["parameter", "input", "intermediate"])
def test_sizes_beyond_any_memory_are_refused(size: int, kind: str) -> None:
    graph = graph_of("normalized")
    index = next(value.id for value in graph.values if value.kind == kind and value.shape)
    values = list(graph.values)
    shape = [size, *values[index].shape[1:]]
    for changes in ({"shape": shape}, {"strides": shape}, {"offset": size}):
        values[index] = replace(graph.values[index], **changes)
        if values[index].kind == "intermediate" or size > 2**60:
            with pytest.raises(ArtifactError, match=r"^graph\.arrow: value "):
                check_graph_program(replace(graph, values=values), "graph.arrow")


@pytest.mark.parametrize("depth", [300, 10**5])
@pytest.mark.parametrize("text", ["[", '{"a":'])
def test_deep_arguments_are_refused(depth: int, text: str) -> None:
    graph = graph_of("normalized")
    deep = text * depth + "1" + {"[": "]", '{"a":': "}"}[text] * depth
    doctored = with_op(graph, "aten.relu.default", arguments=f'{{"args":[{deep}],"kwargs":{{}}}}')
    with pytest.raises(ArtifactError, match="arguments that are not JSON"):
        check_graph(doctored, "graph.arrow")
