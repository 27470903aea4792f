"""The positions of a chain with the options of their blocks, and what of these may leave."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from tightfit.schemas.blocks import Blocks
from tightfit.schemas.options import Option
from tightfit.schemas.problem import Storage
from tightfit.stages.combine.chain.ways import Way, ways_of_blocks
from tightfit.stages.combine.clusters.options import selected

MOST = 16
"""Options of a block that are offered."""


@dataclass(frozen=True)
class Leaving:
    """Storages of the graph that may leave between two uses, with their bytes."""

    storages: Sequence[int]
    sizes: Sequence[int]

    @property
    def bytes(self) -> int:
        """All of them."""
        return sum(self.sizes)

    def grouped(self, wanted: float) -> list[int]:
        """Whole storages that are at least so many bytes together: the largest first that are
        wanted whole, at last the smallest that does (Z 4.6)."""
        chosen: list[int] = []
        left = sorted(zip(self.sizes, self.storages, strict=True), reverse=True)
        for size, storage in list(left):
            if 0 < size <= wanted:
                chosen.append(storage)
                left.remove((size, storage))
                wanted -= size
        if wanted > 0 and left:
            chosen.append(left[-1][1])
        return chosen


@dataclass(frozen=True)
class OffmateOption:
    """A way to run a block with what of its `save` may leave: `own`, between its own forward and
    backward, and its `output`, between those of the next block."""

    way: Way
    own: Leaving
    output: Leaving


@dataclass(frozen=True)
class OffmateChain:
    """The blocks with their options and the parameter gradients that each leaves, in bytes; what is
    there `throughout`, and the loss with its peak. The seconds of ways are those of first
    forwards."""

    positions: list[list[OffmateOption]]
    gradients: list[int]
    throughout: int
    loss_seconds: float
    loss_peak: int

    def __len__(self) -> int:
        return len(self.positions)


def offmate_chain(
    blocks: Blocks,
    options: Mapping[str, list[Option]],
    storages: Sequence[Storage],
    leaving: Collection[int],
) -> OffmateChain:
    """The chain of blocks with options that were made for a link; `storages` are those of the whole
    step, `leaving` those that may."""
    ways = ways_of_blocks(blocks, options)
    positions = []
    for number, block in enumerate(blocks.blocks, 1):
        rows = {row.option: row for row in options[block.digest]}

        def some(found: Sequence[int]) -> Leaving:
            return Leaving(found, [storages[storage].bytes for storage in found])

        found = []
        for way in ways.at(number).ways:
            mine = [block.storages[local] for local in rows[way.option].leaves]
            mine = [storage for storage in mine if storage in leaving]
            own = some([storage for storage in mine if storage not in block.outputs])
            out = some([storage for storage in mine if storage in block.outputs])
            first = replace(way, forward_seconds=rows[way.option].forward_seconds)
            found.append(OffmateOption(first, own, out))
        offered = selected([option.way.save for option in found], MOST)
        positions.append([found[place] for place in offered])
    loss = ways.at(len(ways)).ways[0]
    gradients = [one.gradient for one in ways.positions[:-1]]
    return OffmateChain(
        positions, gradients, ways.throughout, loss.backward_seconds, loss.backward_peak
    )
