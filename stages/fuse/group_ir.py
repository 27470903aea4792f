"""The body of a group in canonical form: equal groups have equal texts, whatever their ids.

A body holds the group's calls and the views that they read. The calls are ordered by what they
compute (a digest of the call and all below it), the inputs by where the calls first read them.
"""

from __future__ import annotations

import hashlib
import heapq
import json
from collections.abc import Collection
from typing import Any

from tightfit.schemas.graph.fused_groups import GroupBody, GroupCall, GroupTensor
from tightfit.schemas.graph.op_arguments import (
    decode_arguments,
    encode_arguments,
    renumber_values,
    values_read,
)
from tightfit.schemas.graph.training_graph import NO_VALUE, Graph, Op
from tightfit.stages.fuse.group_ops import is_inlined_view


def build_fusion_group(
    graph: Graph,
    members: Collection[int],
    wanted: Collection[int],
    recomputed: Collection[int] = frozenset(),
) -> FusionGroup:
    """The body of some ops, whose values `wanted` are read outside. In the backward it computes the
    values `recomputed` of the forward inside."""
    return _GroupBodyWriter(graph, members, recomputed).write(wanted)


class FusionGroup:
    """A body and the values of the graph that its inputs and outputs are."""

    def __init__(self, body: GroupBody, inputs: list[int], outputs: list[int]) -> None:
        self.body = body
        self.inputs = inputs
        self.outputs = outputs


class _GroupBodyWriter:
    def __init__(self, graph: Graph, members: Collection[int], recomputed: Collection[int]) -> None:
        self.graph = graph
        backward = any(graph.ops[op].phase == "backward" for op in members)
        self.recomputed = set(recomputed) if backward else set()
        self.members = set(members)
        self.makers = graph.makers()
        self.labels: dict[int, str] = {}
        self.numbers: dict[int, int] = {}

    def write(self, wanted: Collection[int]) -> FusionGroup:
        """The group, whose values `wanted` are read outside."""
        order = self.ordered(self.needed(wanted))
        made = {value for op in order for value in op.outputs if value != NO_VALUE}
        inputs = [
            value
            for value in dict.fromkeys(value for op in order for value in values_read(op.arguments))
            if value not in made
        ]
        for value in inputs:
            self.numbers[value] = len(self.numbers)
        calls = [self.call(op) for op in order]
        outputs = [value for op in order for value in op.outputs if value in wanted]
        leaves = [self.leaf(value) for value in inputs]
        forms = [self.leaf(value) for value in outputs]
        body = GroupBody(leaves, calls, [self.numbers[at] for at in outputs], forms)
        return FusionGroup(body, inputs, outputs)

    def needed(self, wanted: Collection[int]) -> dict[int, Op]:
        """The members and views that the wanted values need, by id."""
        found: dict[int, Op] = {}
        pending = [self.makers[value] for value in wanted]
        while pending:
            op = pending.pop()
            if op.id not in found:
                found[op.id] = op
                pending += [maker for value in op.inputs if (maker := self.inner(value))]
        return found

    def inner(self, value: int) -> Op | None:
        """The op of the body that makes a value, None for what the group is given."""
        maker = self.makers.get(value)
        if maker is None or maker.id in self.members or is_inlined_view(self.graph, maker):
            return maker
        if value in self.recomputed:
            return maker
        return None

    def ordered(self, needed: dict[int, Op]) -> list[Op]:
        """The ops in an order that depends on what they compute alone, but for equal ones."""
        labels = {at: self.label(needed[at]) for at in sorted(needed)}
        readers: dict[int, list[int]] = {at: [] for at in needed}
        missing = {}
        for at, op in needed.items():
            makers = {self.makers[value].id for value in op.inputs if self.inner(value)}
            missing[at] = len(makers)
            for maker in makers:
                readers[maker].append(at)
        ready = [(labels[at], at) for at, count in missing.items() if not count]
        heapq.heapify(ready)
        order = []
        while ready:
            _, at = heapq.heappop(ready)
            order.append(needed[at])
            for reader in readers[at]:
                missing[reader] -= 1
                if not missing[reader]:
                    heapq.heappush(ready, (labels[reader], reader))
        return order

    def label(self, op: Op) -> str:
        """A digest of a call and of all that it reads; those of its inputs are there already."""
        args, kwargs = _arguments(op)
        call = renumber_values(
            [args, kwargs], {value: self.input_label(value) for value in op.inputs}
        )
        made = [value == NO_VALUE for value in op.outputs]
        label = _digest([op.target, call, made])
        for place, value in enumerate(op.outputs):
            self.labels[value] = f"{label}.{place}"
        return label

    def input_label(self, value: int) -> str:
        """The label of a value; one that the group is given is told by its form."""
        if self.inner(value) is None:
            leaf = self.leaf(value)
            return _digest([leaf.shape, leaf.strides, leaf.offset, leaf.dtype])
        return self.labels[value]

    def leaf(self, value: int) -> GroupTensor:
        """The form of a value of the graph."""
        at = self.graph.values[value]
        return GroupTensor(at.shape, at.strides, at.offset, at.dtype)

    def call(self, op: Op) -> GroupCall:
        """An op with the body's own numbers."""
        args, kwargs = _arguments(op)
        args, kwargs = renumber_values([args, kwargs], {at: self.numbers[at] for at in op.inputs})
        for value in op.outputs:
            if value != NO_VALUE:
                self.numbers[value] = len(self.numbers)
        outputs = [NO_VALUE if value == NO_VALUE else self.numbers[value] for value in op.outputs]
        return GroupCall(op.target, encode_arguments(args, kwargs), outputs)


_PLACEMENT_ARGUMENTS = ("device", "layout")
"""Arguments that say where a result is: where the operands are, which bodies leave open."""


def _arguments(op: Op) -> tuple[list[Any], dict[str, Any]]:
    args, kwargs = decode_arguments(op.arguments)
    return args, {name: value for name, value in kwargs.items() if name not in _PLACEMENT_ARGUMENTS}


def _digest(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
