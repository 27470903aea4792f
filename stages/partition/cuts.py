"""Where a step can be cut: in its forward, and at the matching places of its backward.

A forward cut is a place in the captured order where exactly one storage that gradients flow through
passes from before to after (Z 2.3, "the simplified forward graph is further partitioned into a
sequence of blocks"). The backward cut of a forward cut is a place where exactly one gradient passes
on to everything that belongs to the blocks before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from tightfit.schemas.graph.training_graph import NO_VALUE
from tightfit.stages.partition.gradient_flow import GradientFlow, common_module_path

MERGED_BLOCK_OPS = 3
"""Runs of single ops between cuts (convolution, normalization, activation) are put together to
blocks of this many ops."""


@dataclass(frozen=True)
class BlockCut:
    """One cut. The blocks before it have the forward nodes below `forward` and the backward nodes
    from `backward` on, as positions in the whole step's problem; `activation` and `gradient` are
    the storages that pass.
    """

    forward: int
    activation: int
    backward: int
    gradient: int


@dataclass(frozen=True)
class Segments:
    """A step cut into one block more than there are `cuts`. The nodes of the `prelude` belong to
    no block."""

    cuts: list[BlockCut]
    prelude: frozenset[int]


def find_segments(facts: GradientFlow) -> Segments:
    """Cuts a step into the longest sequence of blocks that is worth having.

    Neighboring single ops are put together (`merge_trivial_segments`), and cuts without a
    counterpart in the backward are given up. Without any cut, the whole step is one block."""
    activations = find_forward_cuts(facts)
    places = merge_trivial_segments(facts, list(activations))
    while True:
        found = _backward_cuts(facts, {place: activations[place] for place in places})
        cuts = [
            BlockCut(place, activations[place], *passing)
            for place, passing in found.items()
            if passing is not None
        ]
        if len(cuts) == len(places):
            break
        places = [cut.forward for cut in cuts]
    return Segments(cuts, _prelude(facts, [0, *places, facts.problem.loss]))


def find_forward_cuts(facts: GradientFlow) -> dict[int, int]:
    """Positions p such that exactly one gluing storage made before p is read at or after p, with
    that storage; only the first position for each storage.

    Reads by the loss do not count: what it reads is the step's output, which the caller holds.
    """
    problem = facts.problem
    last_use: dict[int, int] = {}
    for position, node in enumerate(problem.nodes[: problem.loss]):
        last_use.update(
            (storage, position) for storage in node.inputs if storage in facts.connecting_storages
        )
    ending: dict[int, list[int]] = {}
    for storage, position in last_use.items():
        ending.setdefault(position, []).append(storage)
    crossing: set[int] = set()
    cuts: dict[int, int] = {}
    for position, node in enumerate(problem.nodes[: problem.loss]):
        crossing.difference_update(ending.get(position, []))
        crossing.update(storage for storage in node.outputs if storage in last_use)
        if len(crossing) == 1 and not crossing.issubset(cuts.values()):
            cuts[position + 1] = next(iter(crossing))
    return cuts


def merge_trivial_segments(facts: GradientFlow, places: Sequence[int]) -> list[int]:
    """The cuts that remain when single ops have found their blocks.

    A segment between two cuts is trivial when at most one of its ops can run again. Of a row of
    trivial segments, those at its beginning that come from the submodule of the block before join
    that block. The others become blocks of `PIECE` ops; a single op left over joins the block
    before it. Only at the very start may a block have a single op.
    """
    pieces: list[_Piece] = []
    in_row = False
    for start, end in pairwise([0, *places, facts.problem.loss]):
        piece = _Piece(start, end, _count_repeatable_ops(facts, start, end))
        if piece.ops > 1:
            pieces.append(piece)
            in_row = False
        elif pieces and (
            pieces[-1].ops < MERGED_BLOCK_OPS if in_row else _same_module(facts, pieces[-1], piece)
        ):
            pieces[-1] = pieces[-1].joined(piece)
        else:
            pieces.append(piece)
            in_row = True
    merged: list[_Piece] = []
    for piece in pieces:
        alone = len(merged) == 1 and merged[0].ops <= 1 and _same_module(facts, piece, merged[0])
        if merged and (alone or piece.ops <= 1):
            merged[-1] = merged[-1].joined(piece)
        else:
            merged.append(piece)
    return [piece.start for piece in merged[1:]]


@dataclass(frozen=True)
class _Piece:
    """Forward positions start <= p < end, with how many ops there can run again."""

    start: int
    end: int
    ops: int

    def joined(self, following: _Piece) -> _Piece:
        return _Piece(self.start, following.end, self.ops + following.ops)


def _count_repeatable_ops(facts: GradientFlow, start: int, end: int) -> int:
    nodes = facts.problem.nodes
    return sum(nodes[p].repeatable and p not in facts.pure for p in range(start, end))


def _same_module(facts: GradientFlow, block: _Piece, following: _Piece) -> bool:
    """Whether ops come from within the innermost submodule that contains the block before."""
    common = common_module_path(_modules(facts, block))
    return bool(common) and all(
        path[: len(common)] == common for path in _modules(facts, following)
    )


def _modules(facts: GradientFlow, piece: _Piece) -> list[tuple[str, ...]]:
    return [facts.modules[p] for p in range(piece.start, piece.end) if p not in facts.pure]


def _prelude(facts: GradientFlow, bounds: list[int]) -> frozenset[int]:
    """The pure nodes that make what several blocks read, with all that these need."""
    problem = facts.problem
    block = _block_index(bounds, problem.loss)
    wanted: set[int] = set()
    for position in sorted(facts.pure, reverse=True):
        readers = (r for s in problem.nodes[position].outputs for r in problem.readers[s])
        elsewhere = any(r < problem.loss and block[r] != block[position] for r in readers)
        if position in wanted or elsewhere:
            wanted.add(position)
            wanted |= {problem.storages[s].producer for s in problem.nodes[position].inputs}
    return frozenset(wanted)


def _block_index(bounds: Sequence[int], end: int) -> list[int]:
    index, block = [], 0
    for position in range(end):
        while position >= bounds[block + 1]:
            block += 1
        index.append(block)
    return index


def _backward_cuts(facts: GradientFlow, cuts: dict[int, int]) -> dict[int, tuple[int, int] | None]:
    """For each forward cut its place in the backward and the gradient that passes there; None for
    a cut that must be given up. `cuts` gives the activation that passes each cut."""
    places = list(cuts)
    ranges = _block_ranges(facts, places)
    refused = {places[c] for low, high in ranges.values() for c in range(high, low)}
    result: dict[int, tuple[int, int] | None] = dict.fromkeys(places)
    if refused:
        return {place: None if place in refused else (0, NO_VALUE) for place in places}
    flows = _gradient_spans(facts)
    first, passed = facts.problem.loss + 1, NO_VALUE
    for cut in reversed(range(len(places))):
        after = [position for position, (low, _) in ranges.items() if low > cut]
        before = [position for position, (_, high) in ranges.items() if high <= cut]
        first = max([first, *(position + 1 for position in after)])
        found = _find_backward_cut(
            facts, flows, range(first, min(before, default=0) + 1), cuts[places[cut]]
        )
        if found is not None and found[1] != passed:
            first, passed = found
            result[places[cut]] = found
    return result


def _block_ranges(facts: GradientFlow, places: list[int]) -> dict[int, tuple[int, int]]:
    """The first and last block that each backward node can belong to, where something ties it.

    A node that reads a forward storage belongs to the storage's block, or to the next one where the
    storage passes to it. A node that makes a final gradient belongs to the first block that uses
    the parameter. first > last says that blocks must be merged.
    """
    problem = facts.problem
    block = _block_index([0, *places, problem.loss], problem.loss)
    last_block: dict[int, int] = {}
    for position, node in enumerate(problem.nodes[: problem.loss]):
        last_block.update((storage, block[position]) for storage in node.inputs)
    ranges = {}
    for position in range(problem.loss + 1, len(problem.nodes)):
        low, high = 0, len(places)
        node = problem.nodes[position]
        for storage in facts.connecting_storages.intersection(node.inputs):
            own = block[problem.storages[storage].producer]
            low, high = max(low, own), min(high, last_block.get(storage, own))
        for storage in node.outputs:
            users = facts.parameter_uses.get(storage)
            if users:
                low, high = max(low, block[users[0]]), min(high, block[users[0]])
        if (low, high) != (0, len(places)):
            ranges[position] = (low, high)
    return ranges


def _gradient_spans(facts: GradientFlow) -> list[tuple[int, int, int]]:
    """Gradients on their way: (storage, producer, last reader), made and read by the backward.

    Left out are contributions to a parameter's gradient, which wait until others finish it, and
    what depends on nothing that the loss makes.
    """
    problem = facts.problem
    dependent = set(problem.nodes[problem.loss].outputs)
    for node in problem.nodes[problem.loss + 1 :]:
        if not dependent.isdisjoint(node.inputs):
            dependent.update(node.outputs)
    last_use: dict[int, int] = {}
    for position in range(problem.loss + 1, len(problem.nodes)):
        last_use.update((storage, position) for storage in problem.nodes[position].inputs)
    return [
        (storage, problem.storages[storage].producer, use)
        for storage, use in last_use.items()
        if problem.storages[storage].producer > problem.loss
        and storage in dependent
        and storage not in facts.partial
    ]


def _find_backward_cut(
    facts: GradientFlow, flows: list[tuple[int, int, int]], among: range, activation: int
) -> tuple[int, int] | None:
    """The place where exactly one gradient passes, and that gradient; None if there is none.

    One of the activation's size comes first, then the earliest.
    """
    storages = facts.problem.storages
    passing: dict[int, list[int]] = {place: [] for place in among}
    for storage, producer, use in flows:
        for place in range(max(among.start, producer + 1), min(among.stop - 1, use) + 1):
            passing[place].append(storage)
    single = [(place, crossing[0]) for place, crossing in passing.items() if len(crossing) == 1]
    size = storages[activation].bytes
    return min(single, key=lambda item: (storages[item[1]].bytes != size, item[0]), default=None)
