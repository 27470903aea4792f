"""A problem as flat arrays, the form that the compiled search works on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tightfit.schemas.graph import NONE
from tightfit.schemas.problem import Node, Problem
from tightfit.stages.combine.polish.kinds import kinds_of
from tightfit.stages.combine.polish.views import Views, no_views

Integers = NDArray[np.int64]
Positions = NDArray[np.int32]
Flags = NDArray[np.bool_]
Seconds = NDArray[np.float64]


class Arrays(NamedTuple):
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
    seconds: Seconds
    peak: Integers
    random: Flags
    once: Flags
    earlier: Positions
    later: Positions
    lasting: Flags
    input_start: Positions
    input_item: Positions
    output_start: Positions
    output_item: Positions
    reuse_start: Positions
    reuse_item: Positions
    reuse_input: Positions
    reuse_seconds: Seconds
    reuse_peak: Integers
    size: Integers
    drawn: Seconds
    rank: Positions
    stays: Flags
    again_start: Positions
    again_item: Positions
    input_views: Integers
    view_start: Positions
    view_seconds: Seconds
    brings: Flags
    kind: Positions
    equal_start: Positions
    equal_item: Positions


def arrays(problem: Problem, in_place: bool, views: Views | None = None) -> Arrays:
    """The arrays of a problem; without `in_place`, no node overwrites its inputs, and without
    `views` these take no time."""
    views = views or no_views(problem)
    storages, positions = problem.storages, problem.positions
    nodes = [problem.nodes[problem.node_at(position)] for position in positions]
    further = [problem.is_alternative(position) for position in positions]
    forms = [problem.form_at(at, repeated) for repeated in (False, True) for at in positions]
    reuses = [form.reuses if in_place else [] for form in forms]
    input_start, input_item = _flat(form.inputs for form in forms)
    output_start, output_item = _flat(form.outputs for form in forms)
    kinds = kinds_of(problem)
    equal: list[list[int]] = [[] for _ in range(max(kinds, default=-1) + 1)]
    for position, kind in enumerate(kinds):
        equal[kind].append(position)
    equal_start, equal_item = _flat(equal)
    reuse_start, reuse_item = _flat([reuse.storage for reuse in group] for group in reuses)
    again_start, again_item = _flat(problem.again)
    order = sorted(positions, key=problem.node_at)
    earlier, later = _turns(problem)
    return Arrays(
        nodes=len(problem.nodes),
        loss=problem.loss,
        state_bytes=problem.state_bytes,
        seconds=np.array([form.seconds for form in forms], np.float64),
        peak=np.array([form.peak for form in forms], np.int64),
        random=np.array([node.random for node in nodes], np.bool_),
        once=np.array(
            [
                not (beyond or problem.can_repeat(node))
                for node, beyond in zip(nodes, further, strict=True)
            ],
            np.bool_,
        ),
        earlier=earlier,
        later=later,
        lasting=np.isin(positions, _lasting(problem)),
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
            np.int32,
        ),
        reuse_seconds=np.array([r.seconds for group in reuses for r in group], np.float64),
        reuse_peak=np.array([r.peak for group in reuses for r in group], np.int64),
        size=np.array(problem.sizes, np.int64),
        drawn=np.arange(1.0, len(storages) + 1.0),
        rank=np.argsort(order).astype(np.int32),
        stays=np.array([storage.stays for storage in storages], np.bool_),
        again_start=again_start,
        again_item=again_item,
        input_views=np.array(
            [bits for row in (*views.first, *views.further) for bits in row], np.int64
        ),
        view_start=_starts(views.seconds),
        view_seconds=np.array([each for group in views.seconds for each in group], np.float64),
        brings=np.isin(positions, list(views.brings)),
        kind=np.array(kinds, np.int32),
        equal_start=equal_start,
        equal_item=equal_item,
    )


def _turns(problem: Problem) -> tuple[Positions, Positions]:
    """By position, the nodes ahead of it and behind it of those that keep their turn."""
    turns = [at for at, node in enumerate(problem.nodes) if keeps_turn(node)]
    earlier, later = (np.full(len(problem.positions), NONE, np.int32) for _ in range(2))
    earlier[turns[1:]], later[turns[:-1]] = turns[:-1], turns[1:]
    return earlier, later


def keeps_turn(node: Node) -> bool:
    """Whether the first run of a node keeps its place among others that do: of the forward what
    writes buffers or reads what is written. What runs once in the backward makes a contribution to
    a gradient, and reads what the one before it made."""
    return node.random or (not node.repeatable and node.phase != "backward")


def _lasting(problem: Problem) -> list[int]:
    """The positions of nodes whose first run has to be there, whoever reads what it makes."""
    found = [place for place, node in enumerate(problem.nodes) if node.repeat is not None]
    found += [
        other.node
        for other in problem.alternatives
        if not set(other.form.inputs) & set(problem.nodes[other.node].outputs)
    ]
    return found


def large_first(a: Arrays) -> Arrays:
    """The arrays where large storages are drawn more often, by the square roots of their sizes."""
    return a._replace(drawn=np.cumsum(np.sqrt(a.size.astype(np.float64))))


def _flat(groups: Iterable[list[int]]) -> tuple[Positions, Positions]:
    lists = list(groups)
    return _starts(lists), np.array([item for group in lists for item in group], np.int32)


def _starts(lists: Sequence[Sequence[object]]) -> Positions:
    start = np.zeros(len(lists) + 1, np.int32)
    start[1:] = np.cumsum([len(group) for group in lists])
    return start
