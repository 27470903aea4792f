"""States of an optimizer on their way: they come from an offload target, are updated and go back.

A few staging buffers, allocated once, take turns. What was updated goes back while the next piece
is updated and the one after that comes. Pieces are fetched in the order of the last step.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any, Generic, Protocol, TypeVar

import torch

from .parameter_pieces import ParameterPiece
from .target import TransferHandle


class StateBuffer(Protocol):
    """What the states of one piece pass through, and the transfers that it is in."""

    moving: list[TransferHandle]

    def part(self, size: int) -> Any:
        """The first bytes of it, as its memory moves them."""


class StateTarget(Protocol):
    """A memory that states come from and go back to; see `OffloadTarget`."""

    def write(self, part: Any, offset: int, *after: TransferHandle) -> TransferHandle:
        """See `OffloadTarget.write`."""

    def read(self, part: Any, offset: int, *after: TransferHandle) -> TransferHandle:
        """See `OffloadTarget.read`."""

    def wait(self, ticket: TransferHandle) -> None:
        """See `OffloadTarget.wait`."""

    def close(self) -> None:
        """See `OffloadTarget.close`."""


BufferT = TypeVar("BufferT", bound=StateBuffer)


class StagingBuffer:
    """Bytes of the device for the states of one piece, and the transfers that they are in."""

    def __init__(self, own: torch.Tensor) -> None:
        self.bytes = own
        self.moving: list[TransferHandle] = []

    @classmethod
    def of(cls, size: int, device: torch.device) -> StagingBuffer:
        """So many bytes of their own."""
        return cls(torch.empty(size, dtype=torch.uint8, device=device))

    def part(self, size: int) -> torch.Tensor:
        """See `Buffer.part`."""
        return self.bytes[:size]

    def state(self, piece: ParameterPiece, number: int, dtype: torch.dtype) -> torch.Tensor:
        """The state of a number, flat."""
        begin = number * piece.stride
        size = (piece.end - piece.begin) * dtype.itemsize
        return self.bytes[begin : begin + size].view(dtype)


class StagingRing(Generic[BufferT]):
    """The staging buffers of an optimizer. A piece `arrive`s, is updated, and `leave`s; `waited`
    are the seconds for which the host stood still for transfers."""

    def __init__(self, memory: StateTarget, buffers: Iterable[BufferT]) -> None:
        self.memory = memory
        self.free = deque(buffers)
        self.coming: deque[tuple[ParameterPiece, BufferT]] = deque()
        self.expected: deque[ParameterPiece] = deque()
        self.order: list[ParameterPiece] = []
        self.stored: dict[ParameterPiece, TransferHandle] = {}
        self.waited = 0.0

    def arrive(self, piece: ParameterPiece) -> BufferT:
        """The buffer with the states of a piece; anything may be there where none were stored."""
        if self.coming and self.coming[0][0] is not piece:
            self.forget()
        if self.coming:
            staging = self.coming.popleft()[1]
        else:
            staging = self.free.popleft()
            if piece in self.stored:
                self._fetch(piece, staging)
        self._through(staging)
        return staging

    def leave(self, piece: ParameterPiece, staging: BufferT) -> None:
        """Stores what is in a buffer, and fetches what is next."""
        self.free.append(staging)
        self.stored[piece] = self.memory.write(staging.part(piece.size), piece.place)
        staging.moving.append(self.stored[piece])
        self.order.append(piece)
        self.ahead()

    def drop(self, staging: BufferT) -> None:
        """A buffer is free; what is in it is not stored."""
        self.free.append(staging)

    def ahead(self) -> None:
        """Begins to fetch what is expected, as far as there are buffers."""
        while self.expected and len(self.free) > 1:
            piece = self.expected.popleft()
            staging = self.free.popleft()
            self._fetch(piece, staging)
            self.coming.append((piece, staging))

    def begin(self) -> None:
        """A step has ended: the next one is expected to take the pieces in the same order."""
        self.forget()
        self.expected.extend(piece for piece in self.order if piece in self.stored)
        self.order = []
        self.ahead()

    def forget(self) -> None:
        """Nothing is expected any more, and nothing is on its way."""
        self.expected.clear()
        while self.coming:
            _, staging = self.coming.popleft()
            self._through(staging)
            self.free.append(staging)

    def close(self) -> None:
        """The memory gets its bytes back; what is stored there is gone, even where that fails."""
        self.expected.clear()
        self.memory.close()
        self.coming.clear()

    def _fetch(self, piece: ParameterPiece, staging: BufferT) -> None:
        target = staging.part(piece.size)
        earlier = (*staging.moving, self.stored[piece])
        try:
            staging.moving.append(self.memory.read(target, piece.place, *earlier))
        except BaseException:
            self.free.append(staging)
            raise

    def _through(self, staging: BufferT) -> None:
        """Waits for a buffer's transfers. Where one failed, or the wait is interrupted, the buffer
        is free again, and whoever takes it next waits for the rest."""
        begin = time.perf_counter()
        try:
            while staging.moving:
                self.memory.wait(staging.moving[-1])
                staging.moving.pop()
        except BaseException as error:
            if isinstance(error, Exception):
                staging.moving.pop()
            self.free.append(staging)
            raise
        self.waited += time.perf_counter() - begin


class ResidentStates:
    """The states of some pieces, which stay on a device; as a `StagingRing` that moves nothing."""

    def __init__(self, pieces: Sequence[ParameterPiece], device: torch.device) -> None:
        sizes = [piece.size for piece in pieces]
        self.bytes = sum(sizes)
        whole = torch.empty(self.bytes, dtype=torch.uint8, device=device)
        own = map(StagingBuffer, whole.split(sizes)) if sizes else ()
        self.buffers = dict(zip(pieces, own, strict=True))
        self.stored: dict[ParameterPiece, None] = {}

    def arrive(self, piece: ParameterPiece) -> StagingBuffer:
        """See `StagingRing.arrive`."""
        return self.buffers[piece]

    def leave(self, piece: ParameterPiece, staging: StagingBuffer) -> None:
        """See `StagingRing.leave`."""
        self.stored[piece] = None

    def drop(self, staging: StagingBuffer) -> None:
        """See `StagingRing.drop`."""
