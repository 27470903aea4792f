"""A graph with other ops, its values and storages counted anew."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tightfit.schemas.arguments import decode_arguments, encode_arguments
from tightfit.schemas.graph import FIXED_KINDS, NONE, Graph, Op


def renumbered(graph: Graph, ops: Sequence[Op]) -> Graph:
    """The graph with `ops` in their order in place of its own. Values that none of them makes, and
    storages that are then empty, are gone; all ids count from 0."""
    made = {value for op in ops for value in op.outputs if value != NONE}
    kept = [at for at in graph.values if at.kind in FIXED_KINDS or at.id in made]
    ids = {at.id: number for number, at in enumerate(kept)} | {NONE: NONE}
    storages = list(dict.fromkeys(at.storage for at in kept))
    places = {storage: number for number, storage in enumerate(storages)}
    return replace(
        graph,
        values=[replace(at, id=ids[at.id], storage=places[at.storage]) for at in kept],
        storages=[graph.storages[storage] for storage in storages],
        ops=[_op(op, number, ids) for number, op in enumerate(ops)],
        inputs=[ids[value] for value in graph.inputs],
        outputs=[replace(at, value=ids[at.value], tangent=ids[at.tangent]) for at in graph.outputs],
        gradients=[
            replace(at, value=ids[at.value], gradient=ids[at.gradient]) for at in graph.gradients
        ],
    )


def _op(op: Op, number: int, ids: dict[int, int]) -> Op:
    args, kwargs = _renamed(decode_arguments(op.arguments), ids)
    return replace(
        op,
        id=number,
        arguments=encode_arguments(args, kwargs),
        inputs=[ids[value] for value in op.inputs],
        outputs=[ids[value] for value in op.outputs],
        writes=[ids[value] for value in op.writes],
        in_place=[ids[value] for value in op.in_place],
    )


def _renamed(argument: Any, ids: dict[int, int]) -> Any:
    if isinstance(argument, list | tuple):
        return [_renamed(item, ids) for item in argument]
    if isinstance(argument, dict):
        if set(argument) == {"value"}:
            return {"value": ids[argument["value"]]}
        return {key: _renamed(item, ids) for key, item in argument.items()}
    return argument
