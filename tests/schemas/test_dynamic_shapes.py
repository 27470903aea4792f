"""Graphs whose expressions lie are refused, in a file or out of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.stages.trace import dynamic_models
from tightfit.schemas.graph.dynamic_shapes import (
    DYNAMIC_SHAPES_KEY,
    DynamicLayout,
    DynamicShapes,
    dynamic_metadata,
    graph_at,
    read_dynamic_shapes,
)
from tightfit.schemas.graph.training_graph import Graph, check_graph, write_graph
from tightfit.stages.trace.dynamic_trace import trace_dynamic
from tightfit.util.errors import ArtifactError


@pytest.fixture(scope="module")
def graph() -> Graph:
    built = dynamic_models.built_dynamic(dynamic_models.tokens(dynamic_models.Weighted))
    return trace_dynamic(built, "model")


def test_a_graph_without_dynamic_shapes_is_its_own(graph: Graph) -> None:
    static = replace(graph, dynamic=None)
    assert graph_at(static, {}) is static
    assert read_dynamic_shapes({}, "a file") is None


def test_metadata_are_read_as_they_were_written(graph: Graph) -> None:
    assert read_dynamic_shapes(dynamic_metadata(graph.dynamic), "a file") == graph.dynamic
    assert graph.dynamic is not None
    assert graph.dynamic.describe() == "batch from 2 to 4, tokens from 2 to 24"


def first_storage(dynamic: DynamicShapes, size: Any) -> DynamicShapes:
    return replace(dynamic, storages=dynamic.storages | {min(dynamic.storages): size})


def first_layout(dynamic: DynamicShapes, **changes: Any) -> DynamicShapes:
    at = min(dynamic.layouts)
    return replace(dynamic, layouts=dynamic.layouts | {at: replace(dynamic.layouts[at], **changes)})


def renamed(dynamic: DynamicShapes, **changes: Any) -> DynamicShapes:
    first, *others = dynamic.dimensions
    return replace(dynamic, dimensions=[replace(first, **changes), *others])


def lying_argument(dynamic: DynamicShapes) -> DynamicShapes:
    at, text = min(dynamic.arguments.items())
    return replace(dynamic, arguments=dynamic.arguments | {at: text.replace("tokens", "batch")})


LIES: dict[str, tuple[Callable[[DynamicShapes], DynamicShapes], str]] = {
    "storage": (lambda d: first_storage(d, "16*batch*tokens + 16"), "not the graph's own"),
    "smaller": (lambda d: first_storage(d, "766*(batch - 2) + 4"), "does not lie within"),
    "falling": (lambda d: first_storage(d, "1536 + 16*(24 - tokens)"), "may be larger at smaller"),
    "unknown": (lambda d: first_storage(d, "1536*rows"), "may be larger at smaller"),
    "no size": (lambda d: first_storage(d, "open('x')"), "is no size"),
    "layout": (lambda d: first_layout(d, strides=["batch", 4, 1]), "not the graph's own"),
    "source": (lambda d: first_layout(d, shape=[4, "tokens", 4]), "has no dimension 'batch'"),
    "name": (lambda d: renamed(d, name="a b"), "the dynamic dimension 'a b' is from 2 to 4"),
    "range": (lambda d: renamed(d, smallest=1), "value [0-9]+ may have less than 2 at 0"),
    "none": (lambda d: replace(d, dimensions=[]), "has the dynamic dimensions"),
    "sources": (lambda d: replace(d, sources=d.sources[:1]), "is that of no input"),
    "parameter": (
        lambda d: replace(d, layouts=d.layouts | {0: DynamicLayout([4, "batch"], [4, 1], 0)}),
        "value 0 is a parameter with a dynamic shape",
    ),
    "argument": (lying_argument, "not the graph's own"),
    "second plan": (
        lambda d: replace(d, small_sizes={"batch": 4, "tokens": 25}),
        "has a second plan for calls of up to",
    ),
    "no second plan": (lambda d: replace(d, small_sizes=d.largest), "are no sizes below"),
    "half a second plan": (lambda d: replace(d, small_sizes={"batch": 3}), "are no sizes below"),
}


@pytest.mark.parametrize("lie", LIES)
def test_expressions_that_lie_are_refused(graph: Graph, lie: str, tmp_path: Path) -> None:
    change, said = LIES[lie]
    assert graph.dynamic is not None
    doctored = replace(graph, dynamic=change(graph.dynamic))
    with pytest.raises(ArtifactError, match=said):
        check_graph(doctored, "a graph")
    with pytest.raises(ArtifactError, match=said):
        write_graph(tmp_path / "graph.arrow", doctored)


@pytest.mark.parametrize("text", ["", "7", "{}", '{"dimensions": [3]}', "[" * 5000])
def test_other_metadata_are_refused(text: str) -> None:
    with pytest.raises(ArtifactError, match="does not hold dynamic shapes"):
        read_dynamic_shapes({DYNAMIC_SHAPES_KEY: text}, "a file")


def test_forms_that_overwrite_another_shape_are_refused(graph: Graph) -> None:
    assert graph.dynamic is not None
    op = next(op for op in graph.ops if op.in_place)
    changed = {**graph.dynamic.layouts}
    del changed[op.in_place[0]]
    with pytest.raises(ArtifactError, match="of another shape"):
        check_graph(replace(graph, dynamic=replace(graph.dynamic, layouts=changed)), "a graph")
    assert json.loads(dynamic_metadata(graph.dynamic)[DYNAMIC_SHAPES_KEY])
