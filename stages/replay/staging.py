"""The staging buffers that states of an optimiser pass through, as clocks see them.

Pieces come in the order of the updates, as far as buffers are free; what was updated goes back
while the next piece is updated and the one after that comes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

TransferTimes = Callable[[int, bool, float], tuple[float, float]]
"""From bytes, whether they leave, and a moment before which they do not: begin and end."""


@dataclass
class StagingClocks:
    """The buffers: when each of the `free` ones is free, and the ends of the pieces that are
    `coming`; `expected` are the bytes of the pieces still to come. In a `first` step none come."""

    transfer: TransferTimes
    first: bool
    free: deque[float]
    expected: deque[int]
    coming: deque[float] = field(default_factory=deque)

    @classmethod
    def of(
        cls, transfer: TransferTimes, first: bool, buffers: int, sizes: Iterable[int]
    ) -> StagingClocks:
        """The buffers before a step that updates pieces of these sizes, in order."""
        return cls(transfer, first, deque([0.0] * buffers), deque(sizes))

    def ahead(self) -> None:
        """Fetches what is expected, as far as there are buffers for more than one piece."""
        while self.expected and len(self.free) > 1:
            self._fetch()

    def arrives(self) -> float:
        """When the next piece is there; it leaves by `leaves`."""
        if not self.coming:
            self._fetch()
        return self.coming.popleft()

    def leaves(self, size: int) -> None:
        """What was updated goes back, and what is next comes."""
        end = self.transfer(size, True, 0.0)[1] if size else 0.0
        self.free.append(end)
        self.ahead()

    def _fetch(self) -> None:
        size, free = self.expected.popleft(), self.free.popleft()
        comes = size and not self.first
        self.coming.append(self.transfer(size, False, free)[1] if comes else free)
