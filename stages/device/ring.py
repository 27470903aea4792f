"""States of an optimiser on their way: they come from a slow memory, are updated and go back.

A few slots, allocated once, take turns. What was updated goes back while the next piece is updated
and the one after that comes. Pieces are fetched in the order of the last step.
"""

from __future__ import annotations

from collections import deque

import torch

from stages.device.pieces import Piece
from stages.device.slow import Slow, Ticket


class Slot:
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
    """The slots of an optimiser. A piece `arrive`s, is updated, and `leave`s."""

    def __init__(self, memory: Slow, slots: int, size: int, device: torch.device) -> None:
        self.memory = memory
        self.free = deque(Slot(size, device) for _ in range(slots))
        self.coming: deque[tuple[Piece, Slot]] = deque()
        self.expected: deque[Piece] = deque()
        self.order: list[Piece] = []
        self.stored: dict[Piece, Ticket] = {}

    def arrive(self, piece: Piece) -> Slot:
        """The slot with the states of a piece; anything may be there where none were stored."""
        if self.coming and self.coming[0][0] is not piece:
            self.forget()
        if self.coming:
            slot = self.coming.popleft()[1]
        else:
            slot = self.free.popleft()
            if piece in self.stored:
                self._fetch(piece, slot)
        self._through(slot)
        return slot

    def leave(self, piece: Piece, slot: Slot) -> None:
        """Stores what is in a slot, and fetches what is next."""
        self.stored[piece] = self.memory.write(slot.bytes[: piece.size], piece.place)
        slot.moving.append(self.stored[piece])
        self.order.append(piece)
        self.free.append(slot)
        self.ahead()

    def ahead(self) -> None:
        """Begins to fetch what is expected, as far as there are slots."""
        while self.expected and len(self.free) > 1:
            piece = self.expected.popleft()
            slot = self.free.popleft()
            self._fetch(piece, slot)
            self.coming.append((piece, slot))

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
            _, slot = self.coming.popleft()
            self._through(slot)
            self.free.append(slot)

    def _fetch(self, piece: Piece, slot: Slot) -> None:
        target = slot.bytes[: piece.size]
        earlier = (*slot.moving, self.stored[piece])
        slot.moving.append(self.memory.read(target, piece.place, *earlier))

    def _through(self, slot: Slot) -> None:
        while slot.moving:
            self.memory.wait(slot.moving.pop())
