"""The memory of the host as the slow memory of a GPU: one pinned tensor, allocated once.

A stream for each direction does the transfers in the order of issue. Tensors are made and freed on
the stream that computes, which waits for a transfer by its event; so the allocator gives the bytes
of what has left to nobody before they have left.
"""

from __future__ import annotations

import torch

from .slow import Ticket, check_span


class Host:
    """`size` bytes of the host's memory, with streams to and from them; see `Slow`."""

    def __init__(self, size: int, device: torch.device) -> None:
        self.size = size
        self.device = device
        self.sound = True
        self.bytes = torch.empty(size, dtype=torch.uint8, pin_memory=True)
        self.streams = [torch.cuda.Stream(device), torch.cuda.Stream(device)]
        self.moving: set[Ticket] = set()

    def write(self, tensor: torch.Tensor, offset: int, *after: Ticket) -> Ticket:
        """See `Slow.write`; it begins when what is issued so far is through."""
        return self._issue(0, tensor, offset, after)

    def read(self, tensor: torch.Tensor, offset: int, *after: Ticket) -> Ticket:
        """See `Slow.read`; it begins when what is issued so far is through."""
        return self._issue(1, tensor, offset, after)

    def wait(self, ticket: Ticket) -> None:
        """The stream that computes goes on when a transfer is through; this returns at once."""
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
            ticket.done.synchronize()
            ticket.tensor = None
        self.moving.clear()

    def close(self) -> None:
        """Waits for all transfers and gives the host its memory back."""
        self.idle()
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
