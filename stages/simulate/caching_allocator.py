"""What PyTorch's caching allocator on CUDA makes of a line of allocations: a simulation.

The rules are those of PyTorch's `c10/cuda/CUDACachingAllocator.cpp`, told in the comment at its
head and in the note "CUDA semantics, Memory management" of its documentation
(`docs/source/notes/cuda.rst`). Sizes are multiples of 512 bytes. Requests up to 1 MiB are served
from segments of 2 MiB, those below 10 MiB from segments of 20 MiB, larger ones from segments of
their own, a multiple of 2 MiB. The smallest free block that fits is taken, of equal ones that with
the lowest address, and split where more than 1 MiB is left over (512 bytes in small segments). A
freed block joins its free neighbors. Segments stay until memory runs out.

One stream, one thread. Segments are taken to lie in the order in which they were made, as they
mostly do: it matters where free blocks of different segments have the same size. This module needs
no PyTorch.
"""

from __future__ import annotations

import bisect
from dataclasses import dataclass, field

from tightfit.stages.simulate.allocator_settings import MIB, MIN_BLOCK_SIZE, AllocatorSettings
from tightfit.util.errors import TightfitError

SMALL_SIZE, SMALL_BUFFER = MIB, 2 * MIB
MIN_LARGE_ALLOC, ROUND_LARGE = 10 * MIB, 2 * MIB


class SimulatedOutOfMemoryError(TightfitError):
    """An allocation for which the device has no memory, after all that could be given back was."""


@dataclass(frozen=True)
class AllocatorBytes:
    """Bytes as `torch.cuda.memory_stats` counts them: what was asked for, the blocks that were
    given for it, and the segments that the device gave for these."""

    requested: int
    allocated: int
    reserved: int


@dataclass(eq=False)
class _Block:
    """A stretch of a segment, with the stretches beside it."""

    address: int
    size: int
    pool: _Pool
    requested: int = 0
    used: bool = False
    before: _Block | None = None
    after: _Block | None = None

    def key(self) -> tuple[int, int]:
        return self.size, self.address


@dataclass(eq=False)
class _Pool:
    """The free blocks of small or of large segments, by size and address."""

    small: bool
    free: list[tuple[int, int]] = field(default_factory=list)
    blocks: dict[int, _Block] = field(default_factory=dict)
    tail: _Block | None = None

    def add(self, block: _Block) -> None:
        bisect.insort(self.free, block.key())
        self.blocks[block.address] = block

    def take(self, block: _Block) -> None:
        del self.free[bisect.bisect_left(self.free, block.key())]
        del self.blocks[block.address]

    def fitting(self, size: int) -> list[_Block]:
        """The two smallest free blocks of at least a size."""
        first = bisect.bisect_left(self.free, (size, -1))
        return [self.blocks[address] for _, address in self.free[first : first + 2]]


class CachingAllocator:
    """The state of the allocator of one device."""

    def __init__(self, settings: AllocatorSettings, capacity: int | None = None) -> None:
        self.settings = settings
        self.capacity = capacity
        self.small, self.large = _Pool(True), _Pool(False)
        self.live: dict[int, _Block | None] = {}
        self.requested = self.allocated = self.reserved = 0
        self.peak = AllocatorBytes(0, 0, 0)
        self._address = 0

    def taken(self) -> AllocatorBytes:
        """The bytes that are taken now."""
        return AllocatorBytes(self.requested, self.allocated, self.reserved)

    def allocate(self, name: int, size: int) -> None:
        """Hands out a block; nothing for no bytes."""
        if name in self.live:
            raise ValueError(f"{name} is allocated twice")
        self.live[name] = self._block(size) if size else None
        peak = self.peak
        if (
            self.requested > peak.requested
            or self.allocated > peak.allocated
            or self.reserved > peak.reserved
        ):
            self.peak = AllocatorBytes(
                max(self.requested, peak.requested),
                max(self.allocated, peak.allocated),
                max(self.reserved, peak.reserved),
            )

    def free(self, name: int) -> None:
        """Takes a block back, and joins it with its free neighbors."""
        if name not in self.live:
            raise ValueError(f"{name} is freed and was not allocated")
        block = self.live.pop(name)
        if block is None:
            return
        self.requested -= block.requested
        self.allocated -= block.size
        block.used = False
        for neighbor in (block.before, block.after):
            if neighbor is not None and not neighbor.used:
                block.pool.take(neighbor)
                block = self._joined(block, neighbor)
        block.pool.add(block)

    def _block(self, requested: int) -> _Block:
        size = self.settings.rounded(requested)
        pool = self.small if size <= SMALL_SIZE else self.large
        block = self._found(pool, size)
        if block is not None:
            pool.take(block)
        elif self.settings.expandable:
            block = self._expanded(pool, size)
        else:
            block = self._segment(pool, self._segment_size(size))
        if self._splits(pool, block.size - size, size):
            pool.add(self._split(block, size))
        block.used, block.requested = True, requested
        self.requested += requested
        self.allocated += block.size
        return block

    def _found(self, pool: _Pool, size: int) -> _Block | None:
        """The free block that is taken for a size; the end of an expandable segment only where
        there is no other."""
        fitting = pool.fitting(size)
        if not fitting:
            return None
        if self.settings.expandable:
            return fitting[-1] if fitting[0] is pool.tail else fitting[0]
        [block, *_] = fitting
        most = self.settings.max_split
        if most is not None and size < most <= block.size:
            return None
        if most is not None and size >= most and block.size >= size + self.settings.non_split:
            return None
        return block

    def _splits(self, pool: _Pool, left: int, size: int) -> bool:
        if pool.small or self.settings.expandable:
            return left >= MIN_BLOCK_SIZE
        most = self.settings.max_split
        return left > SMALL_SIZE and (most is None or size < most)

    def _segment_size(self, size: int) -> int:
        if size <= SMALL_SIZE:
            return SMALL_BUFFER
        if size < MIN_LARGE_ALLOC:
            return self.settings.large_segment
        return -(-size // ROUND_LARGE) * ROUND_LARGE

    def _segment(self, pool: _Pool, size: int) -> _Block:
        """A new segment as one block."""
        self._reserve(size)
        self._address += size
        return _Block(self._address - size, size, pool)

    def _expanded(self, pool: _Pool, size: int) -> _Block:
        """The block at the end of the pool's only segment, which grows by whole pages."""
        page = SMALL_BUFFER if pool.small else self.settings.large_segment
        last = pool.tail
        there = 0 if last is None or last.used else last.size
        grown = -(-(size - there) // page) * page
        self._reserve(grown)
        start = 0 if last is None else last.address + last.size
        block = _Block(start, grown, pool, before=last)
        pool.tail = block
        if last is not None:
            last.after = block
            if not last.used:
                pool.take(last)
                block = self._joined(block, last)
        return block

    def _reserve(self, size: int) -> None:
        if self.capacity is not None and self.reserved + size > self.capacity:
            self._give_back()
            if self.reserved + size > self.capacity:
                raise SimulatedOutOfMemoryError(
                    f"{size:,} bytes more do not fit beside {self.reserved:,} of {self.capacity:,}"
                )
        self.reserved += size

    def _give_back(self) -> None:
        """Gives whole free segments back to the device, as the allocator does when it fails."""
        if self.settings.expandable:
            return
        for pool in (self.small, self.large):
            for block in list(pool.blocks.values()):
                if block.before is None and block.after is None:
                    pool.take(block)
                    self.reserved -= block.size

    def _split(self, block: _Block, size: int) -> _Block:
        """Cuts a block to a size and returns the rest of it."""
        rest = _Block(block.address + size, block.size - size, block.pool)
        rest.before, rest.after, block.after = block, block.after, rest
        if rest.after is not None:
            rest.after.before = rest
        block.size = size
        if block.pool.tail is block:
            block.pool.tail = rest
        return rest

    def _joined(self, one: _Block, other: _Block) -> _Block:
        """Two neighbors as one block: the one with the lower address."""
        low, high = (one, other) if one.address < other.address else (other, one)
        low.size += high.size
        low.after = high.after
        if low.after is not None:
            low.after.before = low
        if low.pool.tail is high:
            low.pool.tail = low
        return low
