"""A memory beside that of a device: bytes that tensors are sent to and brought back from."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch


class TransferHandle:
    """A transfer on its way, what tells its begin and its end, and the tensor whose bytes it reads
    or fills."""

    __slots__ = ("began", "done", "tensor")

    def __init__(self, done: Any, tensor: torch.Tensor | None, began: Any = None) -> None:
        self.done = done
        self.began = began
        self.tensor: torch.Tensor | None = tensor


@dataclass(frozen=True)
class MemoryRegion:
    """`size` bytes of such a memory from `begin` on."""

    begin: int
    size: int


class TargetAccess(Protocol):
    """The bytes of such a memory for what computes beside it."""

    def here(self, buffer: torch.Tensor, offset: int) -> torch.Tensor:
        """Where as many bytes as a buffer has, from `offset` on, are to be put: their place, where
        a processor writes them there, else the buffer."""

    def read(self, buffer: torch.Tensor, offset: int) -> torch.Tensor:
        """As many bytes as a buffer has, from `offset` on: as they are there where a processor
        reads them in their place, else in the buffer."""

    def write(self, tensor: torch.Tensor, offset: int) -> None:
        """Puts a tensor's bytes to `offset`, unless that is where they are."""


TargetWork = Callable[[TargetAccess], None]
"""What is computed beside such a memory."""


class OffloadTarget(Protocol):
    """`size` bytes of such a memory; it is `sound` unless a transfer has failed, and `failure` is
    the sentence that says so then.

    Transfers of one direction are done in the order of issue. Each takes the bytes of a contiguous
    tensor, which must stay as it is until the ticket was waited for.
    """

    size: int
    failure: str

    @property
    def healthy(self) -> bool:
        """Whether no transfer has failed."""

    def write(self, tensor: torch.Tensor, offset: int, *after: TransferHandle) -> TransferHandle:
        """Sends a tensor's bytes to `offset`, once the tickets `after` are through."""

    def read(self, tensor: torch.Tensor, offset: int, *after: TransferHandle) -> TransferHandle:
        """Fills a tensor with the bytes from `offset` on, once the tickets `after` are through."""

    def beside(self, work: TargetWork, *after: TransferHandle) -> TransferHandle:
        """Computes beside the memory, on a thread of its own, once the tickets `after` are through:
        one work after the other, in the order of issue."""

    def reach(self) -> TargetAccess:
        """What such work is given."""

    def wait(self, ticket: TransferHandle) -> None:
        """What is computed next finds a transfer or a work through; its tensor is no longer
        held."""

    def now(self) -> Any:
        """The moment at which what is computed so far is through."""

    def passed(self, ticket: TransferHandle) -> tuple[Any, Any]:
        """The moments at which a transfer that was waited for began and ended."""

    def seconds(self, first: Any, last: Any) -> float:
        """The seconds from one moment to another one, both of them over."""

    def idle(self) -> None:
        """Returns when all transfers are through, whether or not they failed."""

    def close(self) -> None:
        """Waits for all transfers and gives the bytes back."""


def target_error(memory: OffloadTarget, sentence: str) -> RuntimeError:
    """A sentence about a memory that is not sound, with what it failed by."""
    return RuntimeError(f"{sentence}; the failure was: {memory.failure}")


def check_region(tensor: torch.Tensor, offset: int, size: int) -> int:
    """The bytes of a tensor, which is to be contiguous and lie within the memory from `offset`."""
    own = tensor.numel() * tensor.element_size()
    if not tensor.is_contiguous() or not 0 <= offset <= size - own:
        raise ValueError(f"{own} bytes at {offset} do not lie within {size} bytes")
    return own


class TargetSlice:
    """`size` bytes of a memory from `begin` on; see `OffloadTarget`. All of it is closed with a
    part."""

    def __init__(self, memory: OffloadTarget, begin: int, size: int) -> None:
        self.memory = memory
        self.begin = begin
        self.size = size
        self.waited = 0.0
        """Seconds for which the host has stood still for transfers."""

    @property
    def healthy(self) -> bool:
        """See `OffloadTarget.sound`."""
        return self.memory.healthy

    @property
    def failure(self) -> str:
        """See `OffloadTarget`."""
        return self.memory.failure

    @failure.setter
    def failure(self, value: str) -> None:
        self.memory.failure = value

    def write(self, tensor: torch.Tensor, offset: int, *after: TransferHandle) -> TransferHandle:
        """See `OffloadTarget.write`."""
        check_region(tensor, offset, self.size)
        return self.memory.write(tensor, self.begin + offset, *after)

    def read(self, tensor: torch.Tensor, offset: int, *after: TransferHandle) -> TransferHandle:
        """See `OffloadTarget.read`."""
        check_region(tensor, offset, self.size)
        return self.memory.read(tensor, self.begin + offset, *after)

    def beside(self, work: TargetWork, *after: TransferHandle) -> TransferHandle:
        """See `OffloadTarget.beside`; the work reaches all of the memory, in which `at` says where
        this part is."""
        return self.memory.beside(work, *after)

    def reach(self) -> TargetAccess:
        """See `OffloadTarget.reach`."""
        return self.memory.reach()

    def at(self, offset: int) -> int:
        """The place in the whole memory of one in this part."""
        return self.begin + offset

    def wait(self, ticket: TransferHandle) -> None:
        """See `OffloadTarget.wait`."""
        begin = time.perf_counter()
        self.memory.wait(ticket)
        self.waited += time.perf_counter() - begin

    def now(self) -> Any:
        """See `OffloadTarget.now`."""
        return self.memory.now()

    def passed(self, ticket: TransferHandle) -> tuple[Any, Any]:
        """See `OffloadTarget.passed`."""
        return self.memory.passed(ticket)

    def seconds(self, first: Any, last: Any) -> float:
        """See `OffloadTarget.seconds`."""
        return self.memory.seconds(first, last)

    def idle(self) -> None:
        """See `OffloadTarget.idle`."""
        self.memory.idle()

    def close(self) -> None:
        """See `OffloadTarget.close`."""
        self.memory.close()
