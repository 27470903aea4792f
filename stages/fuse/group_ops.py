"""Which ops of a graph run as one: convex groups, greedily, in the order of the graph.

A group is convex when no path leaves it and comes back: then the graph of groups has no cycle and
can be put in an order. Views are no members: a group replays those that it reads.
"""

from __future__ import annotations

import itertools
import math

from tightfit.schemas.graph.fused_groups import is_group_operator, is_view_operator
from tightfit.schemas.graph.ownership import previous_partial_gradients
from tightfit.schemas.graph.tensor_layout import DTYPE_BYTES
from tightfit.schemas.graph.training_graph import NO_VALUE, PHASES, Graph, Op


def root_values(graph: Graph, makers: dict[int, Op], op: Op) -> list[int]:
    """The values that an op reads, views replaced by what they are views of."""
    found: list[int] = []
    pending = list(reversed(op.inputs))
    while pending:
        value = pending.pop()
        maker = makers.get(value)
        if maker is not None and is_inlined_view(graph, maker):
            pending.extend(reversed(maker.inputs))
        else:
            found.append(value)
    return found


def is_inlined_view(graph: Graph, op: Op) -> bool:
    """Whether a group that reads the outputs of an op runs it inside: a plain view."""
    return op.repeatable and is_view_operator(op.target) and graph.is_view(op)


def is_groupable(graph: Graph, op: Op) -> bool:
    """Whether an op may be a member: pointwise or normalizing, each output in a new storage, not
    random, free to run whenever its inputs are there, and of no complex numbers, which inductor
    leaves to ATen."""
    if not is_group_operator(op.target) or op.random or not op.repeatable or op.writes:
        return False
    values = [graph.values[value] for value in (*op.inputs, *op.outputs) if value != NO_VALUE]
    made = [graph.values[value].storage for value in op.outputs if value != NO_VALUE]
    read = {graph.values[value].storage for value in op.inputs}
    here = not any(value.device or value.dtype.startswith("complex") for value in values)
    apart = bool(made) and len(set(made)) == len(made) and not read & set(made)
    return (
        here
        and apart
        and all(_fills_storage(graph, value) for value in op.outputs if value != NO_VALUE)
    )


def _fills_storage(graph: Graph, value: int) -> bool:
    """Whether a value is all of its storage, as what a kernel makes is."""
    at = graph.values[value]
    size = math.prod(at.shape) * DTYPE_BYTES[at.dtype]
    return at.offset == 0 and graph.storages[at.storage] == size


def ordered_pairs(graph: Graph) -> list[tuple[int, int]]:
    """Pairs of ops of which the first runs ahead of the second whatever they read: ops that are
    random or run exactly once, and those that make contributions to one gradient."""
    bound = [op.id for op in graph.ops if op.random or not op.repeatable or op.writes]
    pairs = list(itertools.pairwise(bound))
    makers = graph.makers()
    for value, before in previous_partial_gradients(graph).items():
        earlier, later = (_storage_maker(graph, makers, at) for at in (before, value))
        if earlier is not None and later is not None and earlier < later:
            pairs.append((earlier, later))
    return pairs


def _storage_maker(graph: Graph, makers: dict[int, Op], value: int) -> int | None:
    """The op that makes the storage of a value, None where none does."""
    maker = makers.get(value)
    while maker is not None and graph.is_view(maker):
        storage = graph.values[value].storage
        value = next(at for at in maker.inputs if graph.values[at].storage == storage)
        maker = makers.get(value)
    return None if maker is None else maker.id


class FusionUnits:
    """The graph of units: a unit is one op or a group. `members` are op ids by unit, and a unit is
    named by its first member. Some ops keep their order (`ordered_pairs`)."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.members = {op.id: [op.id] for op in graph.ops}
        self.dissolved: set[int] = set()
        self.unit = {op.id: op.id for op in graph.ops}
        makers = graph.makers()
        self.before = {
            op.id: {
                makers[value].id
                for value in (
                    root_values(graph, makers, op) if is_groupable(graph, op) else op.inputs
                )
                if value in makers
            }
            for op in graph.ops
        }
        for earlier, later in ordered_pairs(graph):
            self.before[later].add(earlier)

    def may_join(self, op: int, unit: int) -> bool:
        """Whether no path from the unit to the op goes through another one."""
        seen: set[int] = set()
        pending = [self.unit[other] for other in self.before[op] if self.unit[other] != unit]
        while pending:
            at = pending.pop()
            if at == unit:
                return False
            if at not in seen:
                seen.add(at)
                pending.extend(self.behind(at))
        return True

    def behind(self, unit: int) -> set[int]:
        """The units that a unit waits for."""
        found = {self.unit[other] for at in self.members[unit] for other in self.before[at]}
        return found - {unit}

    def join(self, op: int, unit: int) -> None:
        """Makes an op that stood alone a member of a unit."""
        self.members[unit].append(op)
        del self.members[op]
        self.unit[op] = unit

    def may_merge(self, one: int, other: int) -> bool:
        """Whether no path between two units goes through another one."""
        return not (self._leads(one, other) or self._leads(other, one))

    def _leads(self, start: int, end: int) -> bool:
        """Whether a path from one unit to another goes through a third."""
        pending = [unit for unit in self.behind(end) if unit != start]
        seen: set[int] = set(pending)
        while pending:
            behind = self.behind(pending.pop())
            if start in behind:
                return True
            pending += behind - seen
            seen |= behind
        return False

    def merge(self, one: int, other: int) -> int:
        """Makes two units one; returns its name."""
        first, second = min(one, other), max(one, other)
        for op in self.members.pop(second):
            self.members[first].append(op)
            self.unit[op] = first
        self.members[first].sort()
        return first

    def dissolve(self, unit: int) -> None:
        """Makes each member of a unit stand alone."""
        for op in self.members.pop(unit):
            self.members[op] = [op]
            self.unit[op] = op
            self.dissolved.add(op)


def group_ops(graph: Graph) -> FusionUnits:
    """Greedy convex groups: each groupable op joins the latest unit among those that make what it
    reads, if both are groupable, of one phase, and the group stays convex; else it stands alone.
    Through it the other units that make what it reads join, where the group stays convex. Ops that
    share an input alone are not joined."""
    units = FusionUnits(graph)
    makers = graph.makers()
    groupable = {op.id for op in graph.ops if is_groupable(graph, op)}
    for op in graph.ops:
        if op.id not in groupable:
            continue
        producers = {
            makers[value].id for value in root_values(graph, makers, op) if value in makers
        }
        near = {
            units.unit[other]
            for other in producers & groupable
            if graph.ops[other].phase == op.phase
        }
        joined: int | None = None
        for unit in sorted(near, key=lambda unit: units.members[unit][-1], reverse=True):
            if joined is None and units.may_join(op.id, unit):
                units.join(op.id, unit)
                joined = unit
            elif joined is not None and units.may_merge(joined, unit):
                joined = units.merge(joined, unit)
    return units


def phase_index(graph: Graph, unit: list[int]) -> int:
    """The number of the phase that a unit runs in."""
    return PHASES.index(graph.ops[unit[0]].phase)
