"""The memory of the host as the offload target of a GPU: one pinned tensor, allocated once.

A stream for each direction does the transfers in the order of issue. Tensors are made and freed on
the stream that computes, which waits for a transfer by its event; so the allocator gives the bytes
of what has left to nobody before they have left. A thread of the host computes beside: who waits
for that stands still, and so does who begins a transfer that comes after it.
"""

from __future__ import annotations

import os
from functools import partial
from typing import Any

import torch

from ..backward_tracker import error_summary
from .disk_target import DiskTarget
from .target import OffloadTarget, TargetAccess, TargetWork, TransferHandle, check_region
from .worker_thread import WorkerFuture, WorkerThread

_ALIGNED = 64


class HostTarget:
    """`size` bytes of the host's memory, with streams to and from them; see `OffloadTarget`."""

    def __init__(self, size: int, device: torch.device) -> None:
        self.size = size
        self.device = device
        self.failure = ""
        self.bytes = torch.empty(size, dtype=torch.uint8, pin_memory=True)
        self.streams = [torch.cuda.Stream(device), torch.cuda.Stream(device)]
        self.worker = WorkerThread("tightfit-beside-host")
        self.moving: set[TransferHandle] = set()

    @property
    def healthy(self) -> bool:
        """See `OffloadTarget.sound`."""
        return not self.failure

    def write(self, tensor: torch.Tensor, offset: int, *after: TransferHandle) -> TransferHandle:
        """See `OffloadTarget.write`; it begins when what is issued so far is through."""
        return self._issue(0, tensor, offset, after)

    def read(self, tensor: torch.Tensor, offset: int, *after: TransferHandle) -> TransferHandle:
        """See `OffloadTarget.read`; it begins when what is issued so far is through."""
        return self._issue(1, tensor, offset, after)

    def beside(self, work: TargetWork, *after: TransferHandle) -> TransferHandle:
        """See `OffloadTarget.beside`."""
        earlier = [ticket.done for ticket in after]
        done = self.worker.submit(partial(_run_work, earlier, work, self.reach()))
        ticket = TransferHandle(done, None)
        self.moving.add(ticket)
        return ticket

    def reach(self) -> TargetAccess:
        """See `OffloadTarget.reach`."""
        return _HostAccess(self.bytes)

    def wait(self, ticket: TransferHandle) -> None:
        """The stream that computes goes on when a transfer is through, and this returns at once;
        for what computes beside, it returns when that is through."""
        if isinstance(ticket.done, WorkerFuture):
            try:
                ticket.done.result()
            except Exception as error:
                self.failure = self.failure or error_summary(error)
                raise
        else:
            torch.cuda.current_stream(self.device).wait_event(ticket.done)
        ticket.tensor = None
        self.moving.discard(ticket)

    def now(self) -> torch.cuda.Event:
        """See `OffloadTarget.now`; the device takes the time when it comes there."""
        return _record_event(torch.cuda.current_stream(self.device))

    def passed(self, ticket: TransferHandle) -> tuple[torch.cuda.Event, torch.cuda.Event]:
        """See `OffloadTarget.passed`."""
        return ticket.began, ticket.done

    @staticmethod
    def seconds(first: torch.cuda.Event, last: torch.cuda.Event) -> float:
        """See `OffloadTarget.seconds`; returns when the device has come to both."""
        first.synchronize()
        last.synchronize()
        return first.elapsed_time(last) / 1e3

    def idle(self) -> None:
        """Returns when all transfers are through."""
        for ticket in list(self.moving):
            if isinstance(ticket.done, WorkerFuture):
                error = ticket.done.exception()
                self.failure = self.failure or ("" if error is None else error_summary(error))
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
        self, direction: int, tensor: torch.Tensor, offset: int, after: tuple[TransferHandle, ...]
    ) -> TransferHandle:
        size = check_region(tensor, offset, self.size)
        here = self.bytes[offset : offset + size]
        flat = tensor.detach().view(-1).view(torch.uint8)
        stream = self.streams[direction]
        stream.wait_event(torch.cuda.current_stream(self.device).record_event())
        for earlier in after:
            if isinstance(earlier.done, WorkerFuture):
                earlier.done.result()
            else:
                stream.wait_event(earlier.done)
        with torch.cuda.stream(stream):
            began = _record_event(stream)
            (here if direction == 0 else flat).copy_(
                flat if direction == 0 else here, non_blocking=True
            )
            ticket = TransferHandle(_record_event(stream), tensor, began)
        self.moving.add(ticket)
        return ticket


def _record_event(stream: torch.cuda.Stream) -> torch.cuda.Event:
    """The moment at which what is issued to a stream so far is through."""
    event = torch.cuda.Event(enable_timing=True)
    event.record(stream)
    return event


class _HostAccess:
    """The host's memory for what computes beside it; see `TargetAccess`."""

    def __init__(self, whole: torch.Tensor) -> None:
        self.whole = whole

    def here(self, buffer: torch.Tensor, offset: int) -> torch.Tensor:
        """See `TargetAccess.here`; what begins at an odd place is put into the buffer."""
        return buffer if offset % _ALIGNED else self._here(buffer, offset)

    def read(self, buffer: torch.Tensor, offset: int) -> torch.Tensor:
        """See `TargetAccess.read`; what begins at an odd place comes in the buffer."""
        here = self._here(buffer, offset)
        return buffer.copy_(here) if offset % _ALIGNED else here

    def write(self, tensor: torch.Tensor, offset: int) -> None:
        """See `TargetAccess.write`."""
        here = self._here(tensor, offset)
        if here.data_ptr() != tensor.data_ptr():
            here.copy_(tensor)

    def _here(self, tensor: torch.Tensor, offset: int) -> torch.Tensor:
        size = check_region(tensor, offset, self.whole.numel())
        return self.whole[offset : offset + size]


def _run_work(earlier: list[Any], work: TargetWork, reach: TargetAccess) -> None:
    for done in earlier:
        if isinstance(done, WorkerFuture):
            done.result()
        else:
            done.synchronize()
    work(reach)


def create_offload_target(
    device: torch.device, size: int, folder: str | os.PathLike[str] | None = None
) -> OffloadTarget:
    """Bytes of the offload target of a device: of the disk in a folder for the CPU, else the
    host's.

    Raises RuntimeError, in one sentence, where there is no room for them.
    """
    return DiskTarget(size, folder) if device.type == "cpu" else HostTarget(size, device)
