"""Alternatives of a graph: what of them is written, read and refused."""

from __future__ import annotations

import json
from dataclasses import asdict
from dataclasses import replace as with_fields
from pathlib import Path
from typing import Any

import pytest

from tests.stages.simulate.problem_graphs import two_ways
from tightfit.schemas import store
from tightfit.schemas.graph.op_arguments import encode_arguments
from tightfit.schemas.graph.training_graph import GRAPH, LOSS_TARGET, Graph, read_graph, write_graph
from tightfit.util.errors import ArtifactError

GRAPH_OF, _ = two_ways()


def changed(**fields: Any) -> Graph:
    """The graph with another alternative."""
    return with_fields(GRAPH_OF, alternatives=[with_fields(GRAPH_OF.alternatives[0], **fields)])


def reading(*values: int) -> dict[str, Any]:
    arguments = encode_arguments([{"value": value} for value in values], {})
    return {"inputs": [*values], "arguments": arguments}


def test_a_graph_is_read_as_it_was_written(tmp_path: Path) -> None:
    write_graph(tmp_path / "graph.arrow", GRAPH_OF)
    found = read_graph(tmp_path / "graph.arrow")
    assert found == GRAPH_OF
    assert (found.alternative_origins, found.op(5), len(found.all_ops)) == (
        {5: 0},
        found.alternatives[0],
        6,
    )


def test_a_graph_without_them_says_nothing_of_them(tmp_path: Path) -> None:
    write_graph(tmp_path / "graph.arrow", with_fields(GRAPH_OF, alternatives=[]))
    assert store.read_header(tmp_path / "graph.arrow").metadata == {}


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"id": 6}, "has the id 6"),
        ({"outputs": [0, 2]}, "does not make what one op makes"),
        ({"outputs": []}, "does not make what one op makes"),
        ({"outputs": [77]}, "does not make what one op makes"),
        ({"outputs": [3]}, "which has no other forms"),
        ({"outputs": GRAPH_OF.alternatives[0].outputs * 2}, "makes a part of a storage"),
        ({"target": "op"}, "names no operator"),
        ({"target": LOSS_TARGET}, "is in the wrong phase"),
        ({"phase": "backward"}, "does more than make values"),
        ({"in_place": [0]}, "does more than make values"),
        ({"random": True}, "does more than make values"),
        ({"writes": [6]}, "does more than make values"),
        (reading(1), "reads value 1, which is not there"),
        (reading(2), "reads value 2, which is not there"),
        (reading(99), "names no value: 99"),
        ({"inputs": []}, "inputs that differ from its arguments"),
    ],
)
def test_a_doctored_one_is_refused(fields: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match=said):
        write_graph(tmp_path / "graph.arrow", changed(**fields))


def test_one_of_what_runs_as_it_is_is_refused(tmp_path: Path) -> None:
    first, *rest = GRAPH_OF.ops
    for other in (with_fields(first, random=True), with_fields(first, repeatable=False)):
        ops = [other, *rest]
        with pytest.raises(ArtifactError, match=r"stands for op 0 \(aten.op0.default\)"):
            write_graph(tmp_path / "graph.arrow", with_fields(GRAPH_OF, ops=ops))


def test_one_that_makes_a_part_of_a_storage_is_refused(tmp_path: Path) -> None:
    values = [
        with_fields(value, storage=1) if value.id == 0 else value for value in GRAPH_OF.values
    ]
    with pytest.raises(ArtifactError, match="makes a part of a storage"):
        write_graph(tmp_path / "graph.arrow", with_fields(GRAPH_OF, values=values))


def row_with(**fields: Any) -> str:
    return json.dumps([asdict(GRAPH_OF.alternatives[0]) | fields])


@pytest.mark.parametrize(
    "written",
    ["{", "{}", "[1]", "[" * 100_000, row_with(id="5"), row_with(inputs=[True]), row_with(more=1),
     row_with(target=None), row_with(random=0)],
)  # fmt: skip
def test_a_text_that_holds_something_else_is_refused(written: str, tmp_path: Path) -> None:
    row = asdict(GRAPH_OF)
    row.pop("alternatives")
    store.write(tmp_path / "graph.arrow", GRAPH, [row], {"alternatives": written})
    with pytest.raises(ArtifactError, match="does not hold alternatives"):
        read_graph(tmp_path / "graph.arrow")
