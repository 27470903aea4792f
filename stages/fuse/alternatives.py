"""Which parts of a group may run where the group would run again: those whose kernel has the bits
of the group's and takes less time, as measured."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from tightfit.schemas.arguments import encode_arguments
from tightfit.schemas.graph import NONE, Graph, Op
from tightfit.schemas.groups import GROUP_PREFIX, Body, body_digest, body_of, body_text, is_group
from tightfit.schemas.held import held_storages
from tightfit.stages.device.devices import kept_random_states
from tightfit.stages.device.groups import filled, forms_of, kernel
from tightfit.stages.fuse.overwriting import WORTH, positive, same_bits
from tightfit.stages.fuse.pace import least_seconds
from tightfit.stages.fuse.parts import Part, parts_of

Judge = Callable[[Body, Part], bool]
"""Whether a part of a body may run in its place."""
Report = Callable[[int, int], None]

SHARE = 0.95
"""The part of a group's time that a part of it takes at most: what is above may be noise."""


def with_alternatives(graph: Graph, judge: Judge, report: Report | None = None) -> Graph:
    """The graph with the alternatives of its groups of the forward that may run again: parts that
    make one output that is worth it, of each distinct group judged once. `report` is told how many
    are, of how many."""
    groups = _groups(graph)
    bodies = {op.target: body_of(op) for op in groups}
    wanted = _wanted(graph)
    taken: dict[str, list[Part]] = {}
    for number, (target, part) in enumerate(wanted):
        if report is not None:
            report(number, len(wanted))
        if judge(bodies[target], part):
            taken.setdefault(target, []).append(part)
    alternatives = [_alternative(op, part) for op in groups for part in taken.get(op.target, ())]
    first = len(graph.ops)
    numbered = [replace(op, id=first + number) for number, op in enumerate(alternatives)]
    return replace(graph, alternatives=numbered)


def distinct_parts(graph: Graph) -> list[Body]:
    """The parts that `with_alternatives` judges, each once."""
    texts = {body_text(part.body): part.body for _, part in _wanted(graph)}
    return [*texts.values()]


def _groups(graph: Graph) -> list[Op]:
    """The groups that may run again."""
    return [op for op in graph.ops if is_group(op.target) and _may_run_again(graph, op)]


def _wanted(graph: Graph) -> list[tuple[str, Part]]:
    """The parts of each distinct group that are worth it, with its target."""
    made = set(range(len(graph.storages))) - graph.fixed_storages()
    least = WORTH * max((graph.storages[storage] for storage in made), default=0)
    found = {op.target: _parts(graph, op, least) for op in reversed(_groups(graph))}
    return [(target, part) for target, parts in found.items() for part in parts]


def _may_run_again(graph: Graph, op: Op) -> bool:
    """Whether an op is one of the forward that makes nothing which the caller holds."""
    made = {graph.values[value].storage for value in op.outputs if value != NONE}
    return op.phase == "forward" and made.isdisjoint(held_storages(graph))


def _parts(graph: Graph, op: Op, least: float) -> list[Part]:
    """The parts of a group for outputs of at least so many bytes, in the order of the outputs."""
    sizes = [
        0 if value == NONE else graph.storages[graph.values[value].storage] for value in op.outputs
    ]
    body = body_of(op)
    return [
        part
        for output, size in enumerate(sizes)
        if size >= least and op.outputs[output] != NONE
        for part in parts_of(body, output, sizes)
    ]


def _alternative(op: Op, part: Part) -> Op:
    """The op that runs a part in place of a group."""
    there, text = [*op.inputs, *op.outputs], body_text(part.body)
    inputs = [there[number] for number in part.reads]
    return replace(
        op,
        target=GROUP_PREFIX + body_digest(text),
        arguments=encode_arguments([{"value": value} for value in inputs], {"body": text}),
        inputs=inputs,
        outputs=[op.outputs[part.output]],
        in_place=[],
    )


def exact_and_faster(body: Body, part: Part, device: torch.device) -> bool:
    """Whether the kernel of a part compiles, has the bits of the group's kernel on a few contents,
    and takes less time."""
    try:
        whole, less = kernel(body, device), kernel(part.body, device)
        with kept_random_states():
            for fill in (torch.Tensor.normal_, positive):
                given = [filled(form, fill, device) for form in forms_of(body.inputs)]
                made = whole(given)
                read = _read(part, given, made)
                if not same_bits(less(read), [made[part.output]]):
                    return False
        own, other = least_seconds([lambda: less(read), lambda: whole(given)], device)
    except RuntimeError:
        return False
    return own <= SHARE * other


def _read(part: Part, given: Sequence[Tensor], made: Sequence[Tensor]) -> list[Tensor]:
    """What a part reads, of a group's inputs and outputs."""
    there = [*given, *made]
    return [there[number] for number in part.reads]
