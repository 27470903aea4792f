"""The search with the clocks of the streams: it decides together what is kept, run again or sent,
and where transfers are issued (`stages.combine.local_search.anneal`).

Behind the nodes of the step it has two for each storage that may leave: one reads it, up to
which it is there at least, and one makes it, with which it begins to come back.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from tightfit.schemas.actions import Action, Free, OpAction, Prefetch
from tightfit.schemas.graph.planning_graph import PlanningGraph, PlanningNode
from tightfit.stages.combine.activation_offload.placement import PlacedTransfers, TransferPlacer
from tightfit.stages.combine.chain_offload.placement import (
    IdleInterval,
    OffloadedStore,
    OffloadInterval,
)
from tightfit.stages.combine.local_search.anneal import FAST, AnnealingSchedule, anneal
from tightfit.stages.combine.local_search.arrays import build_arrays, weight_by_size
from tightfit.stages.combine.local_search.stream_timing import build_stream_timing

SIZE_DIVISOR, MAX_STORAGES = 64, 1024
"""Storages of less than this part of the largest one stay, and all but so many of the largest."""
MIN_MOVES, MAX_WORK = 4000, 2_000_000_000
"""Moves of a search at least, and moves times nodes at most: a move takes the longer the more
nodes there are."""


class TimedTransferSearch:
    """Searches for plans of one problem; `placer` says when what is found is through."""

    def __init__(self, problem: PlanningGraph, placer: TransferPlacer) -> None:
        self.problem, self.placer = problem, placer
        self.moved_storages = _large_storages(problem, placer.leaving)
        nodes = len(problem.nodes)
        extended = replace(problem, nodes=[*problem.nodes, *_transfer_nodes(self.moved_storages)])
        plain = build_arrays(problem, in_place=True)
        views = placer.views.moved(len(self.moved_storages))
        self.arrays = build_arrays(extended, in_place=True, views=views)._replace(
            again_start=plain.again_start, again_item=plain.again_item
        )
        self.size_weighted_arrays = weight_by_size(self.arrays)
        self.streams = build_stream_timing(nodes, problem.sizes, self.moved_storages, placer.link)
        self.leaves = {each: nodes + 2 * i for i, each in enumerate(self.moved_storages)}

    def moved(
        self,
        start: Sequence[int],
        budget: int,
        share: int,
        seed: int,
        pace: AnnealingSchedule = FAST,
    ) -> list[int]:
        """The best sequence with transfers met from a start, with `share` moves for each node: the
        first to be through within the budget or, where none was met, the one least above it."""
        nodes = len(self.problem.nodes)
        count = min(max(share * nodes, MIN_MOVES), MAX_WORK // nodes)
        steps = np.array(start, np.int64)
        # Threads that search at a time have clocks of their own.
        own = self.streams
        timing = own._replace(sent=own.sent.copy(), back=own.back.copy(), viewed=own.viewed.copy())
        a = self.arrays if pace == FAST else self.size_weighted_arrays
        return anneal(a, steps, budget, count, seed, pace, timing).tolist()

    def start(self, placed: PlacedTransfers) -> list[int]:
        """A plan as a sequence with transfers."""
        return self._joined(placed.sequence, placed.stays)

    def of_actions(self, actions: Iterable[Action]) -> list[int]:
        """The actions of a plan (`TransferPlacer.actions`) as a sequence with transfers, but for
        those of small storages."""
        storages = {value: storage for storage, value in self.placer.leaving.items()}
        nodes = {node.op: place for place, node in enumerate(self.problem.nodes)}
        found: list[int] = []
        for action in actions:
            if isinstance(action, OpAction):
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
            gap = IdleInterval(
                (False, storage), self.problem.storages[storage].bytes, 0, first, place - 1
            )
            found.append(OffloadInterval(gap, out, place))
        return self._joined(sequence, found)

    def placed(self, sequence: Sequence[int], budget: int) -> PlacedTransfers | None:
        """The plan that a sequence with transfers is, with what leaves freed later and what comes
        back fetched earlier where that is as fast; None where it exceeds the budget."""
        apart = _TransferSplitter(self.problem, self.moved_storages)
        for node in sequence:
            apart.step(node)
        order = order_by_production(self.problem, apart.sequence, apart.stays)
        exact = self.placer.exact(apart.sequence, apart.stays, order, budget)
        back = [(stay.gap.store[1], stay.back) for stay in apart.stays]
        wide = self.placer.place(apart.sequence, back, budget)
        found = [each for each in (wide, exact) if each is not None]
        return min(found, key=lambda each: each.seconds, default=None)

    def _joined(self, sequence: Sequence[int], stays: Iterable[OffloadInterval]) -> list[int]:
        found = [stay for stay in stays if stay.gap.store[1] in self.leaves]
        ahead: dict[int, list[int]] = {}
        for stay in found:
            ahead.setdefault(stay.out, []).append(self.leaves[stay.gap.store[1]])
        for stay in sorted(found, key=lambda stay: stay.gap.last):
            ahead.setdefault(stay.back, []).append(self.leaves[stay.gap.store[1]] + 1)
        return [each for i, node in enumerate(sequence) for each in (*ahead.get(i, ()), node)]


@dataclass
class _TransferSplitter:
    """A sequence with transfers taken apart, step by step, into a `sequence` of the problem's own
    nodes and the `stays` of what leaves.

    By storage: where it was first `made` for somebody and last `used`, where it `leaves` last, and
    of what is `coming` the step that it is gone from, at the earliest and in fact, and where that
    begins.
    """

    problem: PlanningGraph
    storages: Sequence[int]
    sequence: list[int] = field(default_factory=list)
    stays: list[OffloadInterval] = field(default_factory=list)
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
            gap = IdleInterval((False, storage), size, self.made[storage], first, place - 1)
            self.stays.append(OffloadInterval(gap, out, back))


def order_by_production(
    problem: PlanningGraph, sequence: Sequence[int], stays: Iterable[OffloadInterval]
) -> list[OffloadedStore]:
    """What leaves in the order in which it is made, what one node makes in that of its outputs: the
    order of the clocks (`stages.combine.local_search.stream_timing`)."""

    def place(sent: OffloadedStore) -> tuple[int, int]:
        made, (_, storage) = sent
        return made, problem.nodes[sequence[made]].outputs.index(storage)

    return sorted({(stay.gap.made, stay.gap.store) for stay in stays}, key=place)


def _large_storages(problem: PlanningGraph, leaving: Mapping[int, int]) -> list[int]:
    """The storages that may leave, but for small ones."""
    sizes = {storage: problem.storages[storage].bytes for storage in leaving}
    largest = max(sizes.values(), default=0)
    found = [storage for storage, size in sizes.items() if size * SIZE_DIVISOR >= largest]
    return sorted(sorted(found, key=lambda storage: (-sizes[storage], storage))[:MAX_STORAGES])


def _transfer_nodes(storages: Iterable[int]) -> Iterable[PlanningNode]:
    for storage in storages:
        yield PlanningNode(-1, "backward", 0.0, 0, [storage], [], [], False, True)
        yield PlanningNode(-1, "backward", 0.0, 0, [], [storage], [], False, True)
