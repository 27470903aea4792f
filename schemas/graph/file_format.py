"""The Arrow fields of a graph."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tightfit.schemas.arrow_fields import (
    boolean_field,
    integer_field,
    integer_list_field,
    record_list_field,
    text_field,
    text_list_field,
)
from tightfit.util.errors import ArtifactError

if TYPE_CHECKING:
    from tightfit.schemas.graph.training_graph import Graph, Op


GRAPH_FIELDS = (
    text_field("model"),
    text_field("device"),
    text_field("torch"),
    boolean_field("has_loss"),
    record_list_field(
        "ops",
        integer_field("id"),
        text_field("target"),
        text_field("phase"),
        text_field("arguments"),
        integer_list_field("inputs"),
        integer_list_field("outputs"),
        integer_list_field("writes"),
        integer_list_field("in_place"),
        boolean_field("random"),
        boolean_field("repeatable"),
        text_field("module"),
        text_field("source"),
    ),
    record_list_field(
        "values",
        integer_field("id"),
        text_field("kind"),
        integer_list_field("shape"),
        integer_list_field("strides"),
        integer_field("offset"),
        text_field("dtype"),
        integer_field("storage"),
        text_field("path"),
        text_list_field("aliases"),
        boolean_field("requires_grad"),
        pa.field("data", pa.binary(), nullable=False),
        text_field("device"),
    ),
    integer_list_field("storages"),
    integer_list_field("inputs"),
    text_list_field("input_constants"),
    record_list_field(
        "outputs",
        integer_field("value"),
        integer_field("tangent"),
        text_field("constant"),
        boolean_field("requires_grad"),
    ),
    record_list_field("gradients", integer_field("value"), integer_field("gradient")),
    text_field("input_tree"),
    text_field("output_tree"),
    text_field("guards"),
)


ALTERNATIVES_KEY = "alternatives"
"""Names them in the metadata of a graph."""
_TEXTS = ("target", "phase", "arguments", "module", "source")
_LISTS = ("inputs", "outputs", "writes", "in_place")
_FLAGS = ("random", "repeatable")


def alternatives_metadata(rows: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """The metadata of alternatives as rows, empty where there are none."""
    return (
        {ALTERNATIVES_KEY: json.dumps(rows, sort_keys=True, separators=(",", ":"))} if rows else {}
    )


def read_alternative_rows(metadata: Mapping[str, str], where: str) -> list[dict[str, Any]]:
    """The alternatives in the metadata of a graph as rows, each with the fields of an op; raises
    ArtifactError, naming `where`, where there is something else."""
    try:
        found = json.loads(metadata.get(ALTERNATIVES_KEY, "[]"))
        known = isinstance(found, list) and all(map(_is_row, found))
    except (ValueError, RecursionError):
        known = False
    if not known:
        raise ArtifactError(f"{where}: the metadata does not hold alternatives")
    rows: list[dict[str, Any]] = found
    return rows


def _is_row(row: Any) -> bool:
    return (
        isinstance(row, dict)
        and set(row) == {"id", *_TEXTS, *_LISTS, *_FLAGS}
        and type(row["id"]) is int
        and all(isinstance(row[name], str) for name in _TEXTS)
        and all(type(row[name]) is bool for name in _FLAGS)
        and all(isinstance(row[name], list) for name in _LISTS)
        and all(type(value) is int for name in _LISTS for value in row[name])
    )


def check_alternatives(graph: Graph, where: str) -> None:
    """Raises ArtifactError unless each alternative makes all that one op makes in some storages,
    does no more than that, and reads what is there when that op has run."""
    makers = graph.makers() if graph.alternatives else {}
    for index, op in enumerate(graph.alternatives, len(graph.ops)):
        if amiss := _describe_fault(graph, op, index, makers):
            raise ArtifactError(f"{where}: op {index} ({op.target}), an alternative, {amiss}")


def _describe_fault(graph: Graph, op: Op, index: int, makers: Mapping[int, Op]) -> str:
    """What is wrong with an alternative, "" where nothing is."""
    if op.id != index:
        return f"has the id {op.id}"
    origins = {makers[value].id for value in op.outputs if value in makers}
    if len(origins) != 1 or not makers.keys() >= set(op.outputs):
        return "does not make what one op makes"
    origin = graph.ops[origins.pop()]
    if origin.random or not origin.repeatable or origin.phase == "loss":
        return f"stands for op {origin.id} ({origin.target}), which has no other forms"
    said = (op.phase, op.writes, op.in_place, op.random, op.repeatable)
    if said != (origin.phase, [], [], False, True):
        return "does more than make values"
    storage = [value.storage for value in graph.values]
    made = {storage[value] for value in op.outputs}
    whole = {value for value in origin.outputs if value >= 0 and storage[value] in made}
    read = {storage[value] for value in origin.inputs}
    if sorted(op.outputs) != sorted(whole) or made & read:
        return "makes a part of a storage"
    fixed = graph.baseline_storages()
    for value in op.inputs:
        if not 0 <= value < len(storage):
            return f"names no value: {value}"
        there = storage[value] in fixed or (value in makers and makers[value].id <= origin.id)
        if not there or storage[value] in made:
            return f"reads value {value}, which is not there"
    return ""
