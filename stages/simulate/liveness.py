"""How long a storage lives: the one definition, on the planning view of a step.

A storage is there from the run that makes it to the last run that uses it before it is made again.
Held storages and gradients stay. The state of a node that draws random numbers and runs again is
there from its first run to its last; while it is restored there is one state more. The compiled
twin, which the search works with, is `stages.combine.local_search.liveness`. What transfers send
away and bring back in between is told by who decides it, as bytes that are added ahead of a run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from tightfit.schemas.graph.planning_graph import (
    InPlaceVariant,
    PlanningGraph,
    PlanningNode,
    RecomputeVariant,
)
from tightfit.schemas.graph.training_graph import NO_VALUE

INFINITE_IN_PLACE_THRESHOLD = 1 << 62
"""A ceiling under which a node overwrites an input only where that takes no longer."""


class Execution(NamedTuple):
    """One run of the node at a position of the problem, `repeated` where it is not its first.

    `op` is the op that runs, `form` says what it reads, makes and costs, `reuse` what it
    overwrites. After it are gone, in this order: the inputs that end with it and the outputs that
    nothing reads (`drops`). `before` are the live bytes when it starts, `peak` the most while it
    runs.
    """

    node: int
    op: int
    repeated: bool
    form: PlanningNode | RecomputeVariant
    reuse: InPlaceVariant | None
    drops: list[int]
    before: int
    peak: int

    @property
    def overwrites(self) -> int:
        """The storage that it overwrites, NONE where it overwrites none."""
        return NO_VALUE if self.reuse is None else self.reuse.storage

    @property
    def seconds(self) -> float:
        """The time that it takes."""
        return self.form.seconds if self.reuse is None else self.reuse.seconds


def simulate_executions(
    problem: PlanningGraph,
    sequence: Sequence[int],
    in_place: bool,
    ceiling: int = 0,
    moved: Mapping[int, int] | None = None,
) -> list[Execution]:
    """The runs of a sequence of positions of nodes and alternatives, in its order; `moved` are
    bytes that come back ahead of a run, by its place, negative where some leave.

    With `in_place` a node overwrites the first of its reusable inputs that ends with it, where that
    takes no longer, or where it would need more than `ceiling` bytes otherwise.
    """
    repeated = _repeated_flags(problem, sequence)
    ran = _forms(problem, sequence, repeated)
    drops = ending_storages(ran, problem.staying)
    storages, sizes, nodes = problem.storages, problem.sizes, problem.nodes
    runs, left = Counter(sequence), Counter(sequence)
    live, found = 0, []
    moved = moved or {}
    for place, (position, again, form, dropped) in enumerate(
        zip(sequence, repeated, ran, drops, strict=True)
    ):
        live += moved.get(place, 0)
        node, before = problem.node_at(position), live
        saved, needed, freed = 0, 0, 0
        if nodes[node].random:
            saved, needed, freed = _random_state_bytes(problem, position, runs, left)
        live += saved
        made = live
        for storage in form.outputs:
            made += sizes[storage]
        peak = max(live + needed + form.peak, made)
        reuse = _choose_in_place(form, dropped, peak, ceiling) if in_place and form.reuses else None
        if reuse is not None:
            peak = max(live + needed + reuse.peak, made - sizes[reuse.storage])
        live = made - freed
        for storage in dropped:
            if storages[storage].producer >= 0:
                live -= sizes[storage]
        op = problem.op_at(position)
        found.append(Execution(node, op, again, form, reuse, dropped, before, peak))
    return found


def memory_limits(
    problem: PlanningGraph,
    form: PlanningNode | RecomputeVariant,
    gone: Collection[int],
    undecided: Collection[int],
) -> list[tuple[int, frozenset[int]]]:
    """What a run needs, in place where that takes no longer, as limits that hold together: bytes
    above what is live before it, and the inputs of which only those count that are still there
    after it. Of its inputs some are `gone` after it, and some `undecided`.

    Together they are what a run needs where its in-place forms need alike, and as many bytes less
    as they overwrite; else they are below that.
    """
    made = sum(problem.storages[storage].bytes for storage in form.outputs)
    plain = max(form.peak, made)
    own = {
        reuse.storage: max(reuse.peak, made - problem.storages[reuse.storage].bytes)
        for reuse in form.reuses
        if reuse.seconds <= form.seconds
    }
    ending = [own[storage] for storage in own if storage in gone]
    if ending:
        return [(min(ending), frozenset())]
    found = {storage: own[storage] for storage in own if storage in undecided}
    if not found:
        return [(plain, frozenset())]
    after = [problem.storages[storage].bytes + peak for storage, peak in found.items()]
    return [
        (min(plain, *found.values()), frozenset()),
        (min(plain, *after), frozenset(found)),
    ]


def execution_forms(
    problem: PlanningGraph, sequence: Sequence[int]
) -> list[PlanningNode | RecomputeVariant]:
    """What each execution of a sequence reads, makes and costs."""
    return _forms(problem, sequence, _repeated_flags(problem, sequence))


def ending_storages(
    runs: Sequence[PlanningNode | RecomputeVariant], stays: Collection[int]
) -> list[list[int]]:
    """The storages that end with each of some runs, one after the other, in their forms: what it
    reads for the last time before that is made again, then what it makes and none of them reads.
    What `stays` does not end."""
    used_later = set(stays)
    found: list[list[int]] = []
    for form in reversed(runs):
        gone, unused = [], []
        for storage in form.outputs:
            if storage not in used_later:
                unused.append(storage)
        used_later.difference_update(form.outputs)
        for storage in form.inputs:
            if storage not in used_later:
                gone.append(storage)
        used_later.update(form.inputs)
        found.append(gone + unused)
    return found[::-1]


def subset_memory(problem: PlanningGraph, part: Collection[int]) -> tuple[int, int]:
    """The most bytes that nodes add which run once, in captured order, and those that they leave,
    where what nothing outside of the part needs ends with its last use."""
    nodes = [problem.nodes[position] for position in sorted(part)]
    used = {storage for node in nodes for storage in (*node.inputs, *node.outputs)}
    stays = {storage for storage in used if not problem.is_local_to(storage, part)}
    live = peak = 0
    for node, gone in zip(nodes, ending_storages(nodes, stays), strict=True):
        made = sum(problem.storages[storage].bytes for storage in node.outputs)
        peak = max(peak, live + max(node.peak, made))
        live += made - sum(problem.storages[storage].bytes for storage in gone)
    return peak, live


def _forms(
    problem: PlanningGraph, sequence: Sequence[int], repeated: Sequence[bool]
) -> list[PlanningNode | RecomputeVariant]:
    return [
        problem.variant_at(position, again)
        for position, again in zip(sequence, repeated, strict=True)
    ]


def _repeated_flags(problem: PlanningGraph, sequence: Sequence[int]) -> list[bool]:
    """Which executions are not their node's first."""
    seen: set[int] = set()
    repeated = []
    nodes = len(problem.nodes)
    for position in sequence:
        repeated.append(position in seen or position >= nodes)
        seen.add(position)
    return repeated


def _random_state_bytes(
    problem: PlanningGraph, position: int, runs: Counter[int], left: Counter[int]
) -> tuple[int, int, int]:
    """The bytes of random states that a run of a node that draws saves, needs for itself and frees;
    counts the run. No such node has alternatives."""
    size = problem.state_bytes if runs[position] > 1 else 0
    first = left[position] == runs[position]
    left[position] -= 1
    return size if first else 0, 0 if first else size, 0 if left[position] else size


def _choose_in_place(
    form: PlanningNode | RecomputeVariant, dropped: list[int], peak: int, ceiling: int
) -> InPlaceVariant | None:
    """The in-place form that a run takes; without it the most would be `peak`."""
    for reuse in form.reuses:
        if reuse.storage in dropped:
            return None if reuse.seconds > form.seconds and peak <= ceiling else reuse
    return None


def drop_unused_recomputes(
    problem: PlanningGraph,
    sequence: Sequence[int],
    begin: int = 0,
    among: Collection[int] | None = None,
) -> list[int]:
    """A sequence of node positions without the further runs whose results nothing reads before they
    are made again: those from the place `begin` on, and, where given, of nodes `among` some."""
    first = {node: index for index, node in reversed(list(enumerate(sequence)))}
    kept: list[int] = []
    read: set[int] = set()
    for index, form in reversed(list(enumerate(execution_forms(problem, sequence)))):
        node = sequence[index]
        further = first[node] != index and index >= begin
        if further and (among is None or node in among) and read.isdisjoint(form.outputs):
            continue
        kept.append(node)
        read.difference_update(form.outputs)
        read.update(form.inputs)
    return kept[::-1]
