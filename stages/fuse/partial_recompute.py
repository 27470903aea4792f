"""Which parts of a group may run where the group would run again: those whose kernel has the bits
of the group's and takes less time, as measured."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from tightfit.schemas.graph.fused_groups import (
    GROUP_PREFIX,
    GroupBody,
    GroupCall,
    GroupTensor,
    group_body_digest,
    is_fused_group,
    read_group_body,
    serialize_group_body,
)
from tightfit.schemas.graph.op_arguments import (
    decode_arguments,
    encode_arguments,
    renumber_values,
    values_read,
)
from tightfit.schemas.graph.ownership import caller_owned_storages
from tightfit.schemas.graph.training_graph import NO_VALUE, Graph, Op
from tightfit.stages.fuse.inplace_kernels import MIN_STORAGE_SHARE, fill_positive, same_bits
from tightfit.stages.fuse.speed_filter import min_seconds
from tightfit.stages.torch_utils.devices import preserve_random_states
from tightfit.stages.torch_utils.fused_group_operators import fill_form, group_kernel, tensor_forms
from tightfit.util.progress import ProgressCallback

_LAYER_NORM = "aten.native_layer_norm.default"
STATISTICS_RATIO = 16
"""Outputs of so many times fewer bytes than the one that is made again are always read."""


@dataclass(frozen=True)
class PartialRecompute:
    """A body that makes the output `output` of another one. `reads` are, for each of its inputs,
    the number of an input of that one or, counted on from these, of an output."""

    output: int
    reads: list[int]
    body: GroupBody


def find_partial_recomputes(
    body: GroupBody, output: int, sizes: Iterable[int]
) -> list[PartialRecompute]:
    """The parts that make an output again: from all other outputs that it depends on, and from the
    inputs and the small outputs alone. `sizes` are the bytes of the outputs. Empty where that is
    the whole body."""
    size = [*sizes]
    others = [number for number in range(len(body.outputs)) if number != output]
    small = {number for number in others if size[number] * STATISTICS_RATIO <= size[output]}
    found: dict[tuple[int, ...], PartialRecompute] = {}
    for given in (set(others), small):
        part = _build_partial_recompute(body, output, given)
        if part is not None:
            found.setdefault(tuple(part.reads), part)
    return [*found.values()]


def _build_partial_recompute(
    body: GroupBody, output: int, given: Collection[int]
) -> PartialRecompute | None:
    """The part that makes an output from inputs and those outputs that are given, None where that
    is the whole body."""
    there = {body.outputs[number]: len(body.inputs) + number for number in given}
    calls = [each for call in body.calls for each in _open_norm(call, there, body)]
    needed, wanted = [], {body.outputs[output]}
    for call in reversed(calls):
        made = set(call.outputs) - {NO_VALUE}
        if not made.isdisjoint(wanted):
            needed.append(call)
            wanted |= {value for value in values_read(call.arguments) if value not in there}
    if len(needed) == len(body.calls) and len(body.outputs) == 1:
        return None
    return _build_body(body, output, needed[::-1], there)


def _build_body(
    body: GroupBody, output: int, calls: Collection[GroupCall], there: Mapping[int, int]
) -> PartialRecompute:
    """The body of some calls, in their order, its values counted anew."""
    made = {value for call in calls for value in call.outputs if value not in there}
    reads = [
        value
        for value in dict.fromkeys(value for call in calls for value in values_read(call.arguments))
        if value not in made
    ]
    numbers = {value: number for number, value in enumerate(reads)} | {NO_VALUE: NO_VALUE}
    renamed = []
    for call in calls:
        args, kwargs = renumber_values(decode_arguments(call.arguments), numbers)
        outputs = []
        for value in call.outputs:
            kept = value != NO_VALUE and value not in there
            if kept:
                numbers[value] = len(numbers) - 1
            outputs.append(numbers[value] if kept else NO_VALUE)
        renamed.append(GroupCall(call.target, encode_arguments(args, kwargs), outputs))
    leaves = [_value_form(body, value) for value in reads]
    wanted = numbers[body.outputs[output]]
    whole = GroupBody(leaves, renamed, [wanted], [body.forms[output]])
    return PartialRecompute(output, [there.get(value, value) for value in reads], whole)


def _value_form(body: GroupBody, value: int) -> GroupTensor:
    """The form of an input or an output of a body."""
    if value < len(body.inputs):
        return body.inputs[value]
    return body.forms[body.outputs.index(value)]


def _open_norm(call: GroupCall, there: Collection[int], body: GroupBody) -> list[GroupCall]:
    """A call, or what is left of a layer norm whose statistics are there: the calls that its
    decomposition ends with."""
    made, *statistics = call.outputs
    if call.target != _LAYER_NORM or made == NO_VALUE or not set(statistics) <= set(there):
        return [call]
    mean, deviation = statistics
    args, _ = decode_arguments(call.arguments)
    count = 1 + max(value for other in body.calls for value in other.outputs)
    steps: list[tuple[str, Any]] = [("sub", {"value": mean}), ("mul", {"value": deviation})]
    steps += [(name, at) for name, at in (("mul", args[2]), ("add", args[3])) if at is not None]
    found, before = [], args[0]
    for number, (name, operand) in enumerate(steps, 1):
        after = made if number == len(steps) else count * made + number
        text = encode_arguments([before, operand], {})
        found.append(GroupCall(f"aten.{name}.Tensor", text, [after]))
        before = {"value": after}
    return found


PartialRecomputeJudge = Callable[[GroupBody, PartialRecompute], bool]
"""Whether a part of a body may run in its place."""

MAX_TIME_SHARE = 0.95
"""The part of a group's time that a part of it takes at most: what is above may be noise."""


def add_partial_recomputes(
    graph: Graph, judge: PartialRecomputeJudge, report: ProgressCallback | None = None
) -> Graph:
    """The graph with the alternatives of its groups of the forward that may run again: parts that
    make one output that is worth it, of each distinct group judged once. `report` is told how many
    are, of how many."""
    groups = _recomputable_groups(graph)
    bodies = {op.target: read_group_body(op) for op in groups}
    wanted = _candidates(graph)
    taken: dict[str, list[PartialRecompute]] = {}
    for number, (target, part) in enumerate(wanted):
        if report is not None:
            report(number, len(wanted), "")
        if judge(bodies[target], part):
            taken.setdefault(target, []).append(part)
    alternatives = [_recompute_op(op, part) for op in groups for part in taken.get(op.target, ())]
    first = len(graph.ops)
    numbered = [replace(op, id=first + number) for number, op in enumerate(alternatives)]
    return replace(graph, alternatives=numbered)


def distinct_partial_recomputes(graph: Graph) -> list[GroupBody]:
    """The parts that `add_partial_recomputes` judges, each once."""
    texts = {serialize_group_body(part.body): part.body for _, part in _candidates(graph)}
    return [*texts.values()]


def _recomputable_groups(graph: Graph) -> list[Op]:
    """The groups that may run again."""
    return [op for op in graph.ops if is_fused_group(op.target) and _is_recomputable(graph, op)]


def _candidates(graph: Graph) -> list[tuple[str, PartialRecompute]]:
    """The parts of each distinct group that are worth it, with its target."""
    made = set(range(len(graph.storages))) - graph.baseline_storages()
    least = MIN_STORAGE_SHARE * max((graph.storages[storage] for storage in made), default=0)
    found = {
        op.target: _candidates_of_group(graph, op, least)
        for op in reversed(_recomputable_groups(graph))
    }
    return [(target, part) for target, parts in found.items() for part in parts]


def _is_recomputable(graph: Graph, op: Op) -> bool:
    """Whether an op is one of the forward that makes nothing which the caller holds."""
    made = {graph.values[value].storage for value in op.outputs if value != NO_VALUE}
    return op.phase == "forward" and made.isdisjoint(caller_owned_storages(graph))


def _candidates_of_group(graph: Graph, op: Op, least: float) -> list[PartialRecompute]:
    """The parts of a group for outputs of at least so many bytes, in the order of the outputs."""
    sizes = [
        0 if value == NO_VALUE else graph.storages[graph.values[value].storage]
        for value in op.outputs
    ]
    body = read_group_body(op)
    return [
        part
        for output, size in enumerate(sizes)
        if size >= least and op.outputs[output] != NO_VALUE
        for part in find_partial_recomputes(body, output, sizes)
    ]


def _recompute_op(op: Op, part: PartialRecompute) -> Op:
    """The op that runs a part in place of a group."""
    there, text = [*op.inputs, *op.outputs], serialize_group_body(part.body)
    inputs = [there[number] for number in part.reads]
    return replace(
        op,
        target=GROUP_PREFIX + group_body_digest(text),
        arguments=encode_arguments([{"value": value} for value in inputs], {"body": text}),
        inputs=inputs,
        outputs=[op.outputs[part.output]],
        in_place=[],
    )


def is_exact_and_faster(body: GroupBody, part: PartialRecompute, device: torch.device) -> bool:
    """Whether the kernel of a part compiles, has the bits of the group's kernel on a few contents,
    and takes less time."""
    try:
        whole, less = group_kernel(body, device), group_kernel(part.body, device)
        with preserve_random_states():
            for fill in (torch.Tensor.normal_, fill_positive):
                given = [fill_form(form, fill, device) for form in tensor_forms(body.inputs)]
                made = whole(given)
                read = _partial_inputs(part, given, made)
                if not same_bits(less(read), [made[part.output]]):
                    return False
        own, other = min_seconds([lambda: less(read), lambda: whole(given)], device)
    except RuntimeError:
        return False
    return own <= MAX_TIME_SHARE * other


def _partial_inputs(
    part: PartialRecompute, given: Sequence[Tensor], made: Sequence[Tensor]
) -> list[Tensor]:
    """What a part reads, of a group's inputs and outputs."""
    there = [*given, *made]
    return [there[number] for number in part.reads]
