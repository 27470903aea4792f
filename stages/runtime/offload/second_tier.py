"""A second offload tier: states of an optimizer on a disk behind an offload target, and buffers of
that memory which they pass through.

What updates parameters beside the offload target finds states there: a thread of the disk brings
those of the next pieces while others are updated, and another one takes back what was updated."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator

import torch

from ..backward_tracker import error_summary
from .disk_target import DiskTarget
from .parameter_pieces import ParameterPiece
from .staging import StagingRing
from .target import (
    MemoryRegion,
    OffloadTarget,
    TargetAccess,
    TargetWork,
    TransferHandle,
    target_error,
)
from .worker_thread import WorkerFuture

SECOND_TIER_OPTION = "second_disk"
"""What names the folder."""
TIER_BUFFERS = 4
"""Of one the states are updated, two come, and one goes back."""
BOUNCE_BYTES = 1 << 18
"""Bytes that are on the host at once, in each direction, between two disks."""
_TIER_FAILED = (
    "a disk that states wait on has failed: make model and optimizer anew, and load a state_dict() "
    "that was saved"
)


class SecondTier:
    """`size` bytes of a disk behind a slow `memory`: what is sent to it and comes from it are areas
    of that memory. Offsets begin with `first`. Between two disks bytes are on the host on their
    way, `bounce` of them in each direction."""

    def __init__(
        self,
        memory: OffloadTarget,
        size: int,
        folder: str | os.PathLike[str],
        first: int = 0,
        bounce: int = BOUNCE_BYTES,
    ) -> None:
        self.memory = memory
        self.first = first
        self.disk = DiskTarget(size, folder, SECOND_TIER_OPTION)
        self.bounce_buffers = [torch.empty(bounce, dtype=torch.uint8) for _ in range(2)]

    @property
    def size(self) -> int:
        """See `OffloadTarget`."""
        return self.disk.size

    def write(self, area: MemoryRegion, offset: int, *after: TransferHandle) -> TransferHandle:
        """Sends an area to `offset`, once the tickets `after`, of this disk, are through."""
        return self.disk.passing(True, self._work(area, offset, self._send), *after)

    def read(self, area: MemoryRegion, offset: int, *after: TransferHandle) -> TransferHandle:
        """Fills an area with the bytes from `offset` on, as `write`."""
        return self.disk.passing(False, self._work(area, offset, self._bring), *after)

    def wait(self, ticket: TransferHandle) -> None:
        """Returns when a transfer is through."""
        self.disk.wait(ticket)

    def close(self) -> None:
        """Waits for all transfers and gives the disk its bytes back."""
        self.disk.close()

    def _work(
        self,
        area: MemoryRegion,
        offset: int,
        move: Callable[[TargetAccess, TargetAccess, int, int, int], None],
    ) -> TargetWork:
        """The work that moves an area part by part."""
        most = max(self.bounce_buffers[0].numel(), 1)

        def work(reach: TargetAccess) -> None:
            near = self.memory.reach()
            for begin in range(0, area.size, most):
                size = min(most, area.size - begin)
                move(near, reach, area.begin + begin, offset - self.first + begin, size)

        return work

    def _send(
        self, near: TargetAccess, reach: TargetAccess, here: int, there: int, size: int
    ) -> None:
        reach.write(near.read(self.bounce_buffers[0][:size], here), there)

    def _bring(
        self, near: TargetAccess, reach: TargetAccess, here: int, there: int, size: int
    ) -> None:
        near.write(reach.read(near.here(self.bounce_buffers[1][:size], here), there), here)


class TierBuffer:
    """An area of the offload target for the states of one piece, and the transfers that it is
    in."""

    def __init__(self, area: MemoryRegion) -> None:
        self.area = area
        self.moving: list[TransferHandle] = []

    def part(self, size: int) -> MemoryRegion:
        """The first bytes of it."""
        return MemoryRegion(self.area.begin, size)


class SecondTierStore:
    """The states of some pieces on the disk `behind` a slow `memory`, with buffers of `size` bytes
    each in that memory, from `begin` on. Their places are those from `behind.first` on.

    The thread that computes beside the offload target calls `arrive` and `leave`; all else is for
    when that has nothing to do."""

    def __init__(self, memory: OffloadTarget, behind: SecondTier, begin: int, size: int) -> None:
        self.memory = memory
        self.behind = behind
        self.through = TIER_BUFFERS * size
        """The bytes of all buffers."""
        areas = (MemoryRegion(begin + number * size, size) for number in range(TIER_BUFFERS))
        self.ring = StagingRing(behind, map(TierBuffer, areas))

    @property
    def bytes(self) -> int:
        """The bytes of the device that transfers pass through where that is a CPU."""
        return sum(bounce.numel() for bounce in self.behind.bounce_buffers)

    def has(self, piece: ParameterPiece) -> bool:
        """Whether the states of a piece are here."""
        return 0 <= piece.place - self.behind.first < self.behind.size

    def arrive(self, piece: ParameterPiece, stored: bool) -> TierBuffer:
        """The buffer with the states of a piece; anything is there where none were `stored`."""
        if not stored:
            self.ring.stored.pop(piece, None)
        elif piece not in self.ring.stored:
            self.ring.stored[piece] = _completed_transfer()
        return self.ring.arrive(piece)

    def leave(self, piece: ParameterPiece, hold: TierBuffer, kept: bool) -> None:
        """What is in a buffer goes back if it is `kept`, and what is next comes."""
        if kept:
            self.ring.leave(piece, hold)
        else:
            self.ring.drop(hold)

    def begin(self) -> None:
        """A step has ended: the next one is expected to take the pieces in the same order."""
        with self._failing():
            self.ring.begin()

    def read(self, tensor: torch.Tensor, offset: int) -> TransferHandle:
        """Fills a tensor of the device with states, by way of a buffer, which is waited for."""
        with self._held(tensor) as area:
            self.behind.wait(self.behind.read(area, offset))
            ticket = self.memory.read(tensor, area.begin)
            self.memory.idle()
        return ticket

    def write(self, tensor: torch.Tensor, offset: int) -> TransferHandle:
        """Sends a tensor of the device, as `read`."""
        with self._held(tensor) as area:
            ticket = self.memory.write(tensor, area.begin)
            self.memory.idle()
            self.behind.wait(self.behind.write(area, offset))
        return ticket

    @contextlib.contextmanager
    def _held(self, tensor: torch.Tensor) -> Iterator[MemoryRegion]:
        """A part of a free buffer, while nothing else moves."""
        self.behind.disk.check_open()
        self.memory.idle()
        if not self.memory.healthy:
            raise target_error(self.memory, _TIER_FAILED)
        # What was begun and not waited for, as behind an interruption, may use any buffer.
        self.behind.disk.idle()
        with self._failing():
            self.ring.forget()
            hold = self.ring.free.popleft()
            try:
                yield hold.part(tensor.numel() * tensor.element_size())
            finally:
                self.ring.drop(hold)

    @contextlib.contextmanager
    def _failing(self) -> Iterator[None]:
        """Where the disk fails, what is in the offload target is a part of what belongs together.
        Work beside that memory says so when it is waited for."""
        try:
            yield
        except Exception as error:
            self.memory.failure = self.memory.failure or error_summary(error)
            raise


class TieredStates:
    """All states of an optimizer for what updates on the device: those in an offload target,
    `near`, and behind these those that are `far`."""

    def __init__(self, near: OffloadTarget, far: SecondTierStore) -> None:
        self.near = near
        self.far = far

    @property
    def size(self) -> int:
        """The bytes of both."""
        return self.near.size + self.far.behind.size

    def write(self, tensor: torch.Tensor, offset: int, *after: TransferHandle) -> TransferHandle:
        """See `OffloadTarget.write`."""
        if offset < self.far.behind.first:
            return self.near.write(tensor, offset, *after)
        return self.far.write(tensor, offset)

    def read(self, tensor: torch.Tensor, offset: int, *after: TransferHandle) -> TransferHandle:
        """See `OffloadTarget.read`."""
        if offset < self.far.behind.first:
            return self.near.read(tensor, offset, *after)
        return self.far.read(tensor, offset)

    def wait(self, ticket: TransferHandle) -> None:
        """See `OffloadTarget.wait`."""
        self.near.wait(ticket)

    def close(self) -> None:
        """See `OffloadTarget.close`: both get their bytes back."""
        # What computes beside the near one would wait for what comes from the other one.
        self.near.idle()
        try:
            self.far.behind.close()
        finally:
            self.near.close()


def _completed_transfer() -> TransferHandle:
    """A transfer that is over."""
    return TransferHandle(WorkerFuture.of((0.0, 0.0)), None)
