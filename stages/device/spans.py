"""Parts of one slow memory: what is sent to them takes turns in the lanes of the whole."""

from __future__ import annotations

import time
from typing import Any

import torch

from .slow import Access, Slow, Ticket, Work, check_span


class Span:
    """`size` bytes of a memory from `begin` on; see `Slow`. All of it is closed with a part."""

    def __init__(self, memory: Slow, begin: int, size: int) -> None:
        self.memory = memory
        self.begin = begin
        self.size = size
        self.waited = 0.0
        """Seconds for which the host has stood still for transfers."""

    @property
    def sound(self) -> bool:
        """See `Slow.sound`."""
        return self.memory.sound

    @property
    def failure(self) -> str:
        """See `Slow`."""
        return self.memory.failure

    @failure.setter
    def failure(self, value: str) -> None:
        self.memory.failure = value

    def write(self, tensor: torch.Tensor, offset: int, *after: Ticket) -> Ticket:
        """See `Slow.write`."""
        check_span(tensor, offset, self.size)
        return self.memory.write(tensor, self.begin + offset, *after)

    def read(self, tensor: torch.Tensor, offset: int, *after: Ticket) -> Ticket:
        """See `Slow.read`."""
        check_span(tensor, offset, self.size)
        return self.memory.read(tensor, self.begin + offset, *after)

    def beside(self, work: Work, *after: Ticket) -> Ticket:
        """See `Slow.beside`; the work reaches all of the memory, in which `at` says where this part
        is."""
        return self.memory.beside(work, *after)

    def reach(self) -> Access:
        """See `Slow.reach`."""
        return self.memory.reach()

    def at(self, offset: int) -> int:
        """The place in the whole memory of one in this part."""
        return self.begin + offset

    def wait(self, ticket: Ticket) -> None:
        """See `Slow.wait`."""
        begin = time.perf_counter()
        self.memory.wait(ticket)
        self.waited += time.perf_counter() - begin

    def now(self) -> Any:
        """See `Slow.now`."""
        return self.memory.now()

    def passed(self, ticket: Ticket) -> tuple[Any, Any]:
        """See `Slow.passed`."""
        return self.memory.passed(ticket)

    def seconds(self, first: Any, last: Any) -> float:
        """See `Slow.seconds`."""
        return self.memory.seconds(first, last)

    def idle(self) -> None:
        """See `Slow.idle`."""
        self.memory.idle()

    def close(self) -> None:
        """See `Slow.close`."""
        self.memory.close()
