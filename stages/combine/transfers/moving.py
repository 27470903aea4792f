"""The search with the clocks of the lanes: it decides together what is kept, run again or sent, and
where transfers are issued (`stages.combine.polish.sending`).

Behind the nodes of the step it has two for each storage that may leave: one reads it, up to
which it is there at least, and one makes it, with which it begins to come back.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from tightfit.schemas.actions import Action, Free, Prefetch, Run
from tightfit.schemas.problem import Node, Problem
from tightfit.stages.combine.offload.gaps import Gap
from tightfit.stages.combine.offload.placing import Sent, Stay
from tightfit.stages.combine.polish.anneal import QUICK, Pace
from tightfit.stages.combine.polish.arrays import arrays, large_first
from tightfit.stages.combine.polish.lanes import lanes
from tightfit.stages.combine.polish.sending import anneal_linked
from tightfit.stages.combine.transfers.placing import Placed, Placer

PART, MOST = 64, 1024
"""Storages of less than this part of the largest one stay, and all but so many of the largest."""
LEAST_MOVES, MOST_WORK = 4000, 2_000_000_000
"""Moves of a search at least, and moves times nodes at most: a move takes the longer the more
nodes there are."""


class Mover:
    """Searches for plans of one problem; `placer` says when what is found is through."""

    def __init__(self, problem: Problem, placer: Placer) -> None:
        self.problem, self.placer = problem, placer
        self.moved_storages = _large(problem, placer.leaving)
        nodes = len(problem.nodes)
        extended = replace(problem, nodes=[*problem.nodes, *_transfers(self.moved_storages)])
        plain = arrays(problem, in_place=True)
        views = placer.views.moved(len(self.moved_storages))
        self.arrays = arrays(extended, in_place=True, views=views)._replace(
            again_start=plain.again_start, again_item=plain.again_item
        )
        self.patient = large_first(self.arrays)
        self.lanes = lanes(nodes, problem.sizes, self.moved_storages, placer.link)
        self.leaves = {each: nodes + 2 * i for i, each in enumerate(self.moved_storages)}

    def moved(
        self, start: Sequence[int], budget: int, share: int, seed: int, pace: Pace = QUICK
    ) -> list[int]:
        """The best sequence with transfers met from a start, with `share` moves for each node: the
        first to be through within the budget or, where none was met, the one least above it."""
        nodes = len(self.problem.nodes)
        count = min(max(share * nodes, LEAST_MOVES), MOST_WORK // nodes)
        steps = np.array(start, np.int32)
        # Threads that search at a time have clocks of their own.
        own = self.lanes
        lanes_ = own._replace(sent=own.sent.copy(), back=own.back.copy(), viewed=own.viewed.copy())
        a = self.arrays if pace == QUICK else self.patient
        return anneal_linked(a, lanes_, steps, budget, count, seed, pace).tolist()

    def start(self, placed: Placed) -> list[int]:
        """A plan as a sequence with transfers."""
        return self._joined(placed.sequence, placed.stays)

    def of_actions(self, actions: Iterable[Action]) -> list[int]:
        """The actions of a plan (`Placer.actions`) as a sequence with transfers, but for those of
        small storages."""
        storages = {value: storage for storage, value in self.placer.leaving.items()}
        nodes = {node.op: place for place, node in enumerate(self.problem.nodes)}
        found: list[int] = []
        for action in actions:
            if isinstance(action, Run):
                found.append(nodes[action.op])
            elif isinstance(action, Free | Prefetch) and storages[action.value] in self.leaves:
                comes = isinstance(action, Prefetch)
                found.append(self.leaves[storages[action.value]] + comes)
        return found

    def drafted(self, sequence: Sequence[int], back: Iterable[tuple[int, int]]) -> list[int]:
        """A sequence of node positions, and storages with the places ahead of which they come back,
        as a sequence with transfers: what waits for the backward leaves ahead of the loss."""
        loss = sequence.index(self.problem.loss)
        uses: dict[int, list[int]] = {}
        for place, node in enumerate(sequence):
            for storage in {*self.problem.nodes[node].inputs, *self.problem.nodes[node].outputs}:
                uses.setdefault(storage, []).append(place)
        found = []
        for storage, place in back:
            first = max(use for use in uses[storage] if use < place) + 1
            out = loss if first <= loss < place else first
            gap = Gap((False, storage), self.problem.storages[storage].bytes, 0, first, place - 1)
            found.append(Stay(gap, out, place))
        return self._joined(sequence, found)

    def placed(self, sequence: Sequence[int], budget: int) -> Placed | None:
        """The plan that a sequence with transfers is, with what leaves freed later and what comes
        back fetched earlier where that is as fast; None where it exceeds the budget."""
        apart = _Apart(self.problem, self.moved_storages)
        for node in sequence:
            apart.step(node)
        order = as_made(self.problem, apart.sequence, apart.stays)
        exact = self.placer.exact(apart.sequence, apart.stays, order, budget)
        back = [(stay.gap.store[1], stay.back) for stay in apart.stays]
        wide = self.placer.place(apart.sequence, back, budget)
        found = [each for each in (wide, exact) if each is not None]
        return min(found, key=lambda each: each.seconds, default=None)

    def _joined(self, sequence: Sequence[int], stays: Iterable[Stay]) -> list[int]:
        found = [stay for stay in stays if stay.gap.store[1] in self.leaves]
        ahead: dict[int, list[int]] = {}
        for stay in found:
            ahead.setdefault(stay.out, []).append(self.leaves[stay.gap.store[1]])
        for stay in sorted(found, key=lambda stay: stay.gap.last):
            ahead.setdefault(stay.back, []).append(self.leaves[stay.gap.store[1]] + 1)
        return [each for i, node in enumerate(sequence) for each in (*ahead.get(i, ()), node)]


@dataclass
class _Apart:
    """A sequence with transfers taken apart, step by step, into a `sequence` of the problem's own
    nodes and the `stays` of what leaves.

    By storage: where it was first `made` for somebody and last `used`, where it `leaves` last, and
    of what is `coming` the step that it is gone from, at the earliest and in fact, and where that
    begins.
    """

    problem: Problem
    storages: Sequence[int]
    sequence: list[int] = field(default_factory=list)
    stays: list[Stay] = field(default_factory=list)
    made: dict[int, int] = field(default_factory=dict)
    used: dict[int, int] = field(default_factory=dict)
    leaves: dict[int, int] = field(default_factory=dict)
    coming: dict[int, tuple[int, int, int]] = field(default_factory=dict)
    seen: set[int] = field(default_factory=set)

    def step(self, node: int) -> None:
        """Takes the next step."""
        number = node - len(self.problem.nodes)
        if number >= 0:
            self._transfer(self.storages[number // 2], comes=number % 2 == 1)
            return
        place = len(self.sequence)
        form = self.problem.nodes[node].form(node in self.seen)
        for storage in form.inputs:
            self._read(storage, place)
        for storage in form.outputs:
            # What nothing has read since it was made is dropped before it is made again.
            if self.made.get(storage) == self.used.get(storage):
                self.made[storage] = place
            self.used[storage] = place
            self.leaves.pop(storage, None)
            self.coming.pop(storage, None)
        self.seen.add(node)
        self.sequence.append(node)

    def _transfer(self, storage: int, comes: bool) -> None:
        place = len(self.sequence)
        if not comes:
            self.leaves[storage] = place
            return
        first = self.used[storage] + 1
        out = max(self.leaves.pop(storage, first), first)
        self.coming[storage] = (first, out, place)

    def _read(self, storage: int, place: int) -> None:
        self.leaves.pop(storage, None)
        self.used[storage] = place
        if storage not in self.coming:
            return
        first, out, back = self.coming.pop(storage)
        if out < back:
            size = self.problem.storages[storage].bytes
            gap = Gap((False, storage), size, self.made[storage], first, place - 1)
            self.stays.append(Stay(gap, out, back))


def as_made(problem: Problem, sequence: Sequence[int], stays: Iterable[Stay]) -> list[Sent]:
    """What leaves in the order in which it is made, what one node makes in that of its outputs: the
    order of the clocks (`stages.combine.polish.lanes`)."""

    def place(sent: Sent) -> tuple[int, int]:
        made, (_, storage) = sent
        return made, problem.nodes[sequence[made]].outputs.index(storage)

    return sorted({(stay.gap.made, stay.gap.store) for stay in stays}, key=place)


def _large(problem: Problem, leaving: Mapping[int, int]) -> list[int]:
    """The storages that may leave, but for small ones."""
    sizes = {storage: problem.storages[storage].bytes for storage in leaving}
    largest = max(sizes.values(), default=0)
    found = [storage for storage, size in sizes.items() if size * PART >= largest]
    return sorted(sorted(found, key=lambda storage: (-sizes[storage], storage))[:MOST])


def _transfers(storages: Iterable[int]) -> Iterable[Node]:
    for storage in storages:
        yield Node(-1, "backward", 0.0, 0, [storage], [], [], False, True)
        yield Node(-1, "backward", 0.0, 0, [], [storage], [], False, True)
