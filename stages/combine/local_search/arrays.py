"""A problem as flat arrays, the form that the compiled search works on."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import NamedTuple

import numpy as np

from tightfit.schemas.graph.planning_graph import PlanningGraph, PlanningNode, RecomputeVariant
from tightfit.schemas.graph.training_graph import NO_VALUE
from tightfit.stages.combine.array_types import BoolArray, IntArray, PositionArray, SecondsArray
from tightfit.stages.combine.local_search.views import ViewTimes, untimed_views

EQUIVALENCE_ROUNDS = 2
"""How far around a node its neighbors have to be alike, too."""


def equivalence_classes(problem: PlanningGraph) -> list[int]:
    """By position the number of its kind, from 0 on: equal where nodes or alternatives cost the
    same, and so do those around them that make what they read or read what they make."""
    kinds = _number_distinct(_node_signature(problem, position) for position in problem.positions)
    around = [_neighbors(problem, position) for position in problem.positions]
    for _ in range(EQUIVALENCE_ROUNDS):
        # Behind the kinds is that of what no node makes.
        own = [*kinds, -1]
        kinds = _number_distinct(
            (kind, *map(own.__getitem__, makers), *[_sorted_classes(own, each) for each in readers])
            for kind, (makers, readers) in zip(kinds, around, strict=True)
        )
    return kinds


def _node_signature(problem: PlanningGraph, position: int) -> Hashable:
    sizes = problem.sizes
    node = problem.nodes[problem.node_at(position)]
    first, again = (problem.variant_at(position, repeated) for repeated in (False, True))
    cost = _cost_signature(sizes, first)
    costs = cost, cost if again is first else _cost_signature(sizes, again)
    stays = tuple(map(problem.staying.__contains__, node.outputs))
    further = problem.is_alternative(position)
    return further, node.phase, node.random, node.repeatable, stays, *costs


def _cost_signature(sizes: Sequence[int], form: PlanningNode | RecomputeVariant) -> Hashable:
    return (
        form.seconds,
        form.peak,
        tuple(map(sizes.__getitem__, form.inputs)),
        tuple(map(sizes.__getitem__, form.outputs)),
        tuple([(reuse.seconds, reuse.peak) for reuse in form.reuses]),
    )


def _neighbors(problem: PlanningGraph, position: int) -> tuple[list[int], list[list[int]]]:
    """The nodes that make what a position reads, -1 where none does, and those that read each of
    what it makes."""
    form = problem.variant_at(position, False)
    makers = [problem.storages[storage].producer for storage in form.inputs]
    return makers, [problem.readers[storage] for storage in form.outputs]


def _sorted_classes(kinds: Sequence[int], nodes: Sequence[int]) -> Hashable:
    return tuple(sorted(map(kinds.__getitem__, nodes)))


def _number_distinct(marks: Iterable[Hashable]) -> list[int]:
    numbers: dict[Hashable, int] = {}
    return [numbers.setdefault(mark, len(numbers)) for mark in marks]


class ProblemArrays(NamedTuple):
    """Nodes and storages by index; lists of lists as `_start` (length + 1) and flat `_item`. Behind
    the `nodes` of the problem are its alternatives, as nodes that run only after their own.

    Costs, inputs, outputs and reuses have a row for each node and, as many rows further, one for
    its further runs.

    `stays` marks storages that never end (held by the caller, or gradients). `again` lists by
    storage what makes it again. `once` marks nodes that run exactly once: not repeatable, or
    makers of a storage that stays. The first runs of nodes that draw random numbers, or are of the
    forward or the loss and not repeatable, keep their turn: `earlier` and `later` are the next ones
    in that order, NONE for none. The first run of a `lasting` node is never taken out: it differs
    from its further ones, or an alternative reads nothing of what it makes. `reuse_input` is the
    place of what is overwritten among the inputs. `drawn` sums up how likely storages are drawn, up
    to each of them. `rank` orders nodes as captured, alternatives right behind theirs.
    `input_views` are the views that a row reads of each of its inputs, as bits, and `view_seconds`
    those of each storage (`views`); a node that `brings` its outputs back leaves them their views.
    Nodes of one `kind` are alike (`kinds`), `equal_item` has those
    of each.
    """

    nodes: int
    loss: int
    state_bytes: int
    seconds: SecondsArray
    peak: IntArray
    random: BoolArray
    once: BoolArray
    earlier: PositionArray
    later: PositionArray
    lasting: BoolArray
    input_start: PositionArray
    input_item: PositionArray
    output_start: PositionArray
    output_item: PositionArray
    reuse_start: PositionArray
    reuse_item: PositionArray
    reuse_input: PositionArray
    reuse_seconds: SecondsArray
    reuse_peak: IntArray
    size: IntArray
    drawn: SecondsArray
    rank: PositionArray
    stays: BoolArray
    again_start: PositionArray
    again_item: PositionArray
    input_views: IntArray
    view_start: PositionArray
    view_seconds: SecondsArray
    brings: BoolArray
    kind: PositionArray
    equal_start: PositionArray
    equal_item: PositionArray


def build_arrays(
    problem: PlanningGraph, in_place: bool, views: ViewTimes | None = None
) -> ProblemArrays:
    """The arrays of a problem; without `in_place`, no node overwrites its inputs, and without
    `views` these take no time."""
    views = views or untimed_views(problem)
    storages, positions = problem.storages, problem.positions
    nodes = [problem.nodes[problem.node_at(position)] for position in positions]
    further = [problem.is_alternative(position) for position in positions]
    forms = [problem.variant_at(at, repeated) for repeated in (False, True) for at in positions]
    reuses = [form.reuses if in_place else [] for form in forms]
    input_start, input_item = _flatten(form.inputs for form in forms)
    output_start, output_item = _flatten(form.outputs for form in forms)
    kinds = equivalence_classes(problem)
    equal: list[list[int]] = [[] for _ in range(max(kinds, default=-1) + 1)]
    for position, kind in enumerate(kinds):
        equal[kind].append(position)
    equal_start, equal_item = _flatten(equal)
    reuse_start, reuse_item = _flatten([reuse.storage for reuse in group] for group in reuses)
    again_start, again_item = _flatten(problem.again)
    order = sorted(positions, key=problem.node_at)
    earlier, later = _fixed_order_neighbors(problem)
    return ProblemArrays(
        nodes=len(problem.nodes),
        loss=problem.loss,
        state_bytes=problem.state_bytes,
        seconds=np.array([form.seconds for form in forms], np.float64),
        peak=np.array([form.peak for form in forms], np.int64),
        random=np.array([node.random for node in nodes], np.bool_),
        once=np.array(
            [
                not (beyond or problem.can_recompute(node))
                for node, beyond in zip(nodes, further, strict=True)
            ],
            np.bool_,
        ),
        earlier=earlier,
        later=later,
        lasting=np.isin(positions, _pinned_first_runs(problem)),
        input_start=input_start,
        input_item=input_item,
        output_start=output_start,
        output_item=output_item,
        reuse_start=reuse_start,
        reuse_item=reuse_item,
        reuse_input=np.array(
            [
                form.inputs.index(reuse.storage)
                for form, group in zip(forms, reuses, strict=True)
                for reuse in group
            ],
            np.int64,
        ),
        reuse_seconds=np.array([r.seconds for group in reuses for r in group], np.float64),
        reuse_peak=np.array([r.peak for group in reuses for r in group], np.int64),
        size=np.array(problem.sizes, np.int64),
        drawn=np.arange(1.0, len(storages) + 1.0),
        rank=np.argsort(order).astype(np.int64),
        stays=np.array([storage.stays for storage in storages], np.bool_),
        again_start=again_start,
        again_item=again_item,
        input_views=np.array(
            [bits for row in (*views.first, *views.further) for bits in row], np.int64
        ),
        view_start=_start_offsets(views.seconds),
        view_seconds=np.array([each for group in views.seconds for each in group], np.float64),
        brings=np.isin(positions, list(views.brings)),
        kind=np.array(kinds, np.int64),
        equal_start=equal_start,
        equal_item=equal_item,
    )


def _fixed_order_neighbors(problem: PlanningGraph) -> tuple[PositionArray, PositionArray]:
    """By position, the nodes ahead of it and behind it of those that keep their turn."""
    turns = [at for at, node in enumerate(problem.nodes) if keeps_fixed_order(node)]
    earlier, later = (np.full(len(problem.positions), NO_VALUE, np.int64) for _ in range(2))
    earlier[turns[1:]], later[turns[:-1]] = turns[:-1], turns[1:]
    return earlier, later


def keeps_fixed_order(node: PlanningNode) -> bool:
    """Whether the first run of a node keeps its place among others that do: of the forward what
    writes buffers or reads what is written. What runs once in the backward makes a contribution to
    a gradient, and reads what the one before it made."""
    return node.random or (not node.repeatable and node.phase != "backward")


def _pinned_first_runs(problem: PlanningGraph) -> list[int]:
    """The positions of nodes whose first run has to be there, whoever reads what it makes."""
    found = [place for place, node in enumerate(problem.nodes) if node.repeat is not None]
    found += [
        other.node
        for other in problem.alternatives
        if not set(other.form.inputs) & set(problem.nodes[other.node].outputs)
    ]
    return found


def weight_by_size(a: ProblemArrays) -> ProblemArrays:
    """The arrays where large storages are drawn more often, by the square roots of their sizes."""
    return a._replace(drawn=np.cumsum(np.sqrt(a.size.astype(np.float64))))


def _flatten(groups: Iterable[list[int]]) -> tuple[PositionArray, PositionArray]:
    lists = list(groups)
    return _start_offsets(lists), np.array([item for group in lists for item in group], np.int64)


def _start_offsets(lists: Sequence[Sequence[object]]) -> PositionArray:
    start = np.zeros(len(lists) + 1, np.int64)
    start[1:] = np.cumsum([len(group) for group in lists])
    return start
