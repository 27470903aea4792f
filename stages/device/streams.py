"""The memory of the host as the slow memory of a GPU: one pinned tensor, allocated once.

A stream for each direction does the transfers in the order of issue. Tensors are made and freed on
the stream that computes, which waits for a transfer by its event; so the allocator gives the bytes
of what has left to nobody before they have left. A thread of the host computes beside: who waits
for that stands still, and so does who begins a transfer that comes after it.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch

from .marks import said
from .slow import Access, Ticket, Work, check_span

_ALIGNED = 64


class Host:
    """`size` bytes of the host's memory, with streams to and from them; see `Slow`."""

    def __init__(self, size: int, device: torch.device) -> None:
        self.size = size
        self.device = device
        self.failure = ""
        self.bytes = torch.empty(size, dtype=torch.uint8, pin_memory=True)
        self.streams = [torch.cuda.Stream(device), torch.cuda.Stream(device)]
        self.worker = ThreadPoolExecutor(1, "tightfit-beside-host")
        self.moving: set[Ticket] = set()

    @property
    def sound(self) -> bool:
        """See `Slow.sound`."""
        return not self.failure

    def write(self, tensor: torch.Tensor, offset: int, *after: Ticket) -> Ticket:
        """See `Slow.write`; it begins when what is issued so far is through."""
        return self._issue(0, tensor, offset, after)

    def read(self, tensor: torch.Tensor, offset: int, *after: Ticket) -> Ticket:
        """See `Slow.read`; it begins when what is issued so far is through."""
        return self._issue(1, tensor, offset, after)

    def beside(self, work: Work, *after: Ticket) -> Ticket:
        """See `Slow.beside`."""
        earlier = [ticket.done for ticket in after]
        ticket = Ticket(self.worker.submit(_work, earlier, work, self.reach()), None)
        self.moving.add(ticket)
        return ticket

    def reach(self) -> Access:
        """See `Slow.reach`."""
        return _Reach(self.bytes)

    def wait(self, ticket: Ticket) -> None:
        """The stream that computes goes on when a transfer is through, and this returns at once;
        for what computes beside, it returns when that is through."""
        if isinstance(ticket.done, Future):
            try:
                ticket.done.result()
            except Exception as error:
                self.failure = self.failure or said(error)
                raise
        else:
            torch.cuda.current_stream(self.device).wait_event(ticket.done)
        ticket.tensor = None
        self.moving.discard(ticket)

    def now(self) -> torch.cuda.Event:
        """See `Slow.now`; the device takes the time when it comes there."""
        return _moment(torch.cuda.current_stream(self.device))

    def passed(self, ticket: Ticket) -> tuple[torch.cuda.Event, torch.cuda.Event]:
        """See `Slow.passed`."""
        return ticket.began, ticket.done

    @staticmethod
    def seconds(first: torch.cuda.Event, last: torch.cuda.Event) -> float:
        """See `Slow.seconds`; returns when the device has come to both."""
        first.synchronize()
        last.synchronize()
        return first.elapsed_time(last) / 1e3

    def idle(self) -> None:
        """Returns when all transfers are through."""
        for ticket in list(self.moving):
            if isinstance(ticket.done, Future):
                error = ticket.done.exception()
                self.failure = self.failure or ("" if error is None else said(error))
            else:
                ticket.done.synchronize()
            ticket.tensor = None
        self.moving.clear()

    def close(self) -> None:
        """Waits for all transfers and gives the host its memory back."""
        self.idle()
        self.worker.shutdown()
        self.bytes = torch.empty(0, dtype=torch.uint8)
        self.size = 0

    def _issue(
        self, lane: int, tensor: torch.Tensor, offset: int, after: tuple[Ticket, ...]
    ) -> Ticket:
        size = check_span(tensor, offset, self.size)
        here = self.bytes[offset : offset + size]
        flat = tensor.detach().view(-1).view(torch.uint8)
        stream = self.streams[lane]
        stream.wait_event(torch.cuda.current_stream(self.device).record_event())
        for earlier in after:
            if isinstance(earlier.done, Future):
                earlier.done.result()
            else:
                stream.wait_event(earlier.done)
        with torch.cuda.stream(stream):
            began = _moment(stream)
            (here if lane == 0 else flat).copy_(flat if lane == 0 else here, non_blocking=True)
            ticket = Ticket(_moment(stream), tensor, began)
        self.moving.add(ticket)
        return ticket


def _moment(stream: torch.cuda.Stream) -> torch.cuda.Event:
    """The moment at which what is issued to a stream so far is through."""
    event = torch.cuda.Event(enable_timing=True)
    event.record(stream)
    return event


class _Reach:
    """The host's memory for what computes beside it; see `Access`."""

    def __init__(self, whole: torch.Tensor) -> None:
        self.whole = whole

    def here(self, buffer: torch.Tensor, offset: int) -> torch.Tensor:
        """See `Access.here`; what begins at an odd place is put into the buffer."""
        return buffer if offset % _ALIGNED else self._here(buffer, offset)

    def read(self, buffer: torch.Tensor, offset: int) -> torch.Tensor:
        """See `Access.read`; what begins at an odd place comes in the buffer."""
        here = self._here(buffer, offset)
        return buffer.copy_(here) if offset % _ALIGNED else here

    def write(self, tensor: torch.Tensor, offset: int) -> None:
        """See `Access.write`."""
        here = self._here(tensor, offset)
        if here.data_ptr() != tensor.data_ptr():
            here.copy_(tensor)

    def _here(self, tensor: torch.Tensor, offset: int) -> torch.Tensor:
        size = check_span(tensor, offset, self.whole.numel())
        return self.whole[offset : offset + size]


def _work(earlier: list[Any], work: Work, reach: Access) -> None:
    for done in earlier:
        if isinstance(done, Future):
            done.result()
        else:
            done.synchronize()
    work(reach)
