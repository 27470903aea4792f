"""States of an optimiser on their way: they come from a slow memory, are updated and go back.

A few staging buffers, allocated once, take turns. What was updated goes back while the next piece
is updated and the one after that comes. Pieces are fetched in the order of the last step.
"""

from __future__ import annotations

import time
from collections import deque

import torch

from .pieces import Piece
from .slow import Slow, Ticket


class Staging:
    """Bytes of the device for the states of one piece, and the transfers that it is in."""

    def __init__(self, size: int, device: torch.device) -> None:
        self.bytes = torch.empty(size, dtype=torch.uint8, device=device)
        self.moving: list[Ticket] = []

    def state(self, piece: Piece, number: int, dtype: torch.dtype) -> torch.Tensor:
        """The state of a number, flat."""
        begin = number * piece.stride
        size = (piece.end - piece.begin) * dtype.itemsize
        return self.bytes[begin : begin + size].view(dtype)


class Ring:
    """The staging buffers of an optimiser. A piece `arrive`s, is updated, and `leave`s; `waited`
    are the seconds for which the host stood still for transfers."""

    def __init__(self, memory: Slow, count: int, size: int, device: torch.device) -> None:
        self.memory = memory
        self.free = deque(Staging(size, device) for _ in range(count))
        self.coming: deque[tuple[Piece, Staging]] = deque()
        self.expected: deque[Piece] = deque()
        self.order: list[Piece] = []
        self.stored: dict[Piece, Ticket] = {}
        self.waited = 0.0

    def arrive(self, piece: Piece) -> Staging:
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

    def leave(self, piece: Piece, staging: Staging) -> None:
        """Stores what is in a buffer, and fetches what is next."""
        self.free.append(staging)
        self.stored[piece] = self.memory.write(staging.bytes[: piece.size], piece.place)
        staging.moving.append(self.stored[piece])
        self.order.append(piece)
        self.ahead()

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

    def _fetch(self, piece: Piece, staging: Staging) -> None:
        target = staging.bytes[: piece.size]
        earlier = (*staging.moving, self.stored[piece])
        try:
            staging.moving.append(self.memory.read(target, piece.place, *earlier))
        except BaseException:
            self.free.append(staging)
            raise

    def _through(self, staging: Staging) -> None:
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
