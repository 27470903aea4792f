"""The text of `interface.py`: what a plan was specialised to, as literals."""

from __future__ import annotations

import hashlib
import json
import math
from typing import Any

import torch

from tightfit.schemas.errors import ArtifactError
from tightfit.schemas.graph import NONE, Graph, Output
from tightfit.stages.device.operators import decode
from tightfit.stages.generate.calls import literal
from tightfit.stages.generate.casts import kept_casts, spared_dtypes
from tightfit.stages.generate.check import (
    alike,
    all_arrive,
    asked,
    assigned_of,
    checkpointed,
    guards_of,
    mixed,
    multiple_views,
    ones,
    unread,
)
from tightfit.stages.generate.handed import eager_strides
from tightfit.stages.generate.lifetimes import depending
from tightfit.stages.generate.programs import Program
from tightfit.stages.generate.spaced import copied, spaced

_MOST_COMPARED = 2**24
"""Values of larger storages are taken to share elements where they share the storage."""


def interface_text(graph: Graph, program: Program, prefix: str = "") -> str:
    """The module that defines INTERFACE; the names of the plan's own files begin with `prefix`."""
    positions = {value: position for position, value in enumerate(program.arguments)}
    yielded = program.differentiable + program.unused + program.plain
    # What is returned detached too is yielded twice, with a gradient first.
    places = {value: position for position, value in reversed([*enumerate(yielded)])}
    eval_modules, autocast, cached = guards_of(graph)
    lines = [
        '"""What the plan was specialised to."""',
        "",
        "import torch",
        "",
        "from .facts import Interface, Leaf, Plain, Tangent, Tensor",
        "",
        "INTERFACE = Interface(",
        f"    model={graph.model!r},",
        f"    device={graph.device!r},",
        *_block("tensors", _tensors(graph, program)),
        *_block("leaves", _leaves(graph, positions)),
        f"    input_tree={graph.input_tree!r},",
        *_block("outputs", [_output(graph, program, positions, leaf) for leaf in graph.outputs]),
        f"    output_tree={graph.output_tree!r},",
        *_block("tangents", _tangents(graph, program)),
        *_block("slices", [_known(part, positions) for part in program.slices]),
        *_block("unlike", [repr(tuple(part)) for part in eager_strides(graph, program.handed)]),
        *_block("watched", [_known(part, positions) for part in _watched(graph, program)]),
        *_block("watched_outputs", [_known(part, places) for part in program.watched]),
        f"    assigned={_known(sorted(assigned_of(graph)), positions)},",
        f"    aliased={_known(_aliased(graph, program), places)},",
        f"    inner={_known(_inner(graph, program), places)},",
        f"    unwritable={_known(_unwritable(graph, program), places)},",
        f"    spaced={_known(spaced(graph), positions)},",
        f"    copied={_known(copied(graph), positions)},",
        f"    order={_known(_order(graph, program), places)},",
        f"    alike={_alike(graph, positions)},",
        f"    asked={tuple(asked(graph))!r},",
        f"    ones={_known(ones(graph), positions)},",
        f"    mixed={_known(mixed(graph), positions)},",
        f"    all_arrive={all_arrive(graph)},",
        f"    eval_modules=frozenset({sorted(eval_modules)!r}),",
        f"    autocast={autocast!r},",
        f"    autocast_cache={cached},",
        f"    cast={_known(kept_casts(graph), positions)},",
        f"    spared={tuple(spared_dtypes(graph))!r},",
        f"    constants={_digest(constants(graph, program))!r},",
        f"    files={prefix!r},",
        *([f"    remote={_known(program.remote, positions)},"] if program.remote else []),
        ")",
        "",
    ]
    return "\n".join(lines)


def constants(graph: Graph, program: Program) -> bytes | None:
    """The bytes of the program's constants, in the order of its arguments, each from a multiple of
    16 on; None where it has no constants."""
    values = [graph.values[value] for value in program.arguments]
    if not any(value.kind == "constant" for value in values):
        return None
    return b"".join(_aligned(value.data) for value in values)


def _digest(data: bytes | None) -> str:
    return "" if data is None else hashlib.sha256(data).hexdigest()


def _aligned(data: bytes) -> bytes:
    return data + bytes(-len(data) % 16)


def _block(name: str, items: list[str]) -> list[str]:
    return [f"    {name}=(", *(f"        {item}," for item in items), "    ),"]


def _alike(graph: Graph, positions: dict[int, int]) -> tuple[tuple[int, int], ...]:
    return tuple((positions[value], positions[first]) for value, first in alike(graph))


def _watched(graph: Graph, program: Program) -> list[list[int]]:
    """The values that each slice of the backward needs as they were: those that it reads, and
    inputs that eager would give to checkpoints once more."""
    if not checkpointed(graph):
        return program.watched
    inputs = [value for value in graph.inputs if value != NONE]
    return [[*part, *(value for value in inputs if value not in part)] for part in program.watched]


def _aliased(graph: Graph, program: Program) -> list[int]:
    """The differentiable outputs whose storage holds another output, or was there before."""
    storage = [value.storage for value in graph.values]
    returned = set(graph.output_values())
    shared = [storage[value] for value in returned]
    fixed = graph.fixed_storages()
    return [
        value
        for value in program.differentiable + program.unused
        if storage[value] in fixed or shared.count(storage[value]) > 1
    ]


def _inner(graph: Graph, program: Program) -> list[int]:
    """The differentiable outputs that others of them are made of."""
    leaving = program.differentiable + program.unused
    differentiable = depending(graph)
    found = []
    for value in leaving:
        reached = {value}
        for op in graph.ops:
            if op.phase == "forward" and reached.intersection(op.inputs):
                reached.update(differentiable.intersection(op.outputs))
        overlapping = any(_overlap(graph, value, other) for other in leaving if other != value)
        if overlapping or len(reached.intersection(leaving)) > 1:
            found.append(value)
    return found


def _unwritable(graph: Graph, program: Program) -> list[int]:
    """The differentiable outputs that eager lets nobody write into: one of several views of one
    function, or a view of an input or a parameter with a gradient."""
    found = {graph.outputs[leaf].value for leaf in multiple_views(graph)}
    leaves = {
        value.storage
        for value in graph.values
        if value.kind in ("parameter", "input") and value.requires_grad
    }
    return [
        value
        for value in program.differentiable + program.unused
        if value in found or graph.values[value].storage in leaves
    ]


def _overlap(graph: Graph, one: int, other: int) -> bool:
    """Whether two values share elements: the later one may be made of the earlier one by a write
    in place, which a graph does not say."""
    values = [graph.values[one], graph.values[other]]
    size = graph.storages[values[0].storage] // getattr(torch, values[0].dtype).itemsize
    if values[0].storage != values[1].storage or values[0].dtype != values[1].dtype:
        return False
    if size > _MOST_COMPARED:
        return True
    places = [
        torch.arange(size).as_strided(value.shape, value.strides, value.offset).flatten()
        for value in values
    ]
    return bool(torch.isin(*places).any())


def _order(graph: Graph, program: Program) -> list[int]:
    """The differentiable outputs as autograd comes to them in eager: what was made last first."""
    made = {value: op.id for op in graph.ops for value in op.outputs}
    leaving = program.differentiable + program.unused
    return sorted(leaving, key=lambda value: made.get(value, NONE), reverse=True)


def _known(values: list[int], positions: dict[int, int]) -> str:
    """The positions of those values that have one."""
    return repr(tuple(positions[value] for value in values if value in positions))


def _tensors(graph: Graph, program: Program) -> list[str]:
    texts = []
    start = 0
    for position in program.arguments:
        value = graph.values[position]
        fields: list[Any] = [
            value.kind,
            value.path,
            tuple(value.shape),
            tuple(value.strides),
            value.dtype,
            value.requires_grad,
            tuple(value.aliases),
        ]
        text = ", ".join(repr(field) for field in fields)
        texts.append(f"Tensor({text}{f', {start}' if value.kind == 'constant' else ''})")
        start += len(_aligned(value.data))
    return texts


def _leaves(graph: Graph, positions: dict[int, int]) -> list[str]:
    free = unread(graph)

    def plain(place: int) -> str:
        more = ", unread=True" if place in free else ""
        return f"Plain({_plain(graph.input_constants[place])}{more})"

    return [
        plain(place) if value == NONE else str(positions[value])
        for place, value in enumerate(graph.inputs)
    ]


def _output(graph: Graph, program: Program, positions: dict[int, int], output: Output) -> str:
    if output.value == NONE:
        return f'Leaf("constant", value={_plain(output.constant)})'
    if output.tangent != NONE:
        return f'Leaf("differentiable", {program.tangents.index(output.tangent)})'
    if output.value in positions:
        detached = graph.values[output.value].requires_grad and not output.requires_grad
        return f'Leaf("{"detached" if detached else "tensor"}", {positions[output.value]})'
    if output.requires_grad:
        position = (program.differentiable + program.unused).index(output.value)
        return f'Leaf("differentiable", {position})'
    return f'Leaf("plain", {program.plain.index(output.value)})'


def _tangents(graph: Graph, program: Program) -> list[str]:
    texts = []
    for tangent in program.tangents:
        value = graph.values[tangent]
        fields = (
            tuple(value.shape),
            tuple(value.strides),
            value.dtype,
            program.taken[tangent],
            tangent in program.overwritten,
        )
        texts.append(f"Tangent({', '.join(repr(field) for field in fields)})")
    return texts + ["None" for _ in program.unused]


def _plain(text: str) -> str:
    """The literal of a constant leaf."""
    try:
        constant = json.loads(text)
    except ValueError:
        raise ArtifactError(f"{text!r} is no constant that a call may have") from None
    if isinstance(constant, float) and not math.isfinite(constant):
        raise ArtifactError(f"{text!r} is no constant that a call may have")
    return literal(decode(constant, {}))
