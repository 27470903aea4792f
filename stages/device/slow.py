"""A memory beside that of a device: bytes that tensors are sent to and brought back from."""

from __future__ import annotations

from typing import Any, Protocol

import torch


class Ticket:
    """A transfer on its way, what tells its end, and the tensor whose bytes it reads or fills."""

    __slots__ = ("done", "tensor")

    def __init__(self, done: Any, tensor: torch.Tensor) -> None:
        self.done = done
        self.tensor: torch.Tensor | None = tensor


class Slow(Protocol):
    """`size` bytes of such a memory; it is `sound` unless a transfer has failed.

    Transfers of one direction are done in the order of issue. Each takes the bytes of a contiguous
    tensor, which must stay as it is until the ticket was waited for.
    """

    size: int
    sound: bool

    def write(self, tensor: torch.Tensor, offset: int, *after: Ticket) -> Ticket:
        """Sends a tensor's bytes to `offset`, once the tickets `after` are through."""

    def read(self, tensor: torch.Tensor, offset: int, *after: Ticket) -> Ticket:
        """Fills a tensor with the bytes from `offset` on, once the tickets `after` are through."""

    def wait(self, ticket: Ticket) -> None:
        """What is computed next finds a transfer through; its tensor is no longer held."""

    def idle(self) -> None:
        """Returns when all transfers are through, whether or not they failed."""

    def close(self) -> None:
        """Waits for all transfers and gives the bytes back."""


def check_span(tensor: torch.Tensor, offset: int, size: int) -> int:
    """The bytes of a tensor, which is to be contiguous and lie within the memory from `offset`."""
    own = tensor.numel() * tensor.element_size()
    if not tensor.is_contiguous() or not 0 <= offset <= size - own:
        raise ValueError(f"{own} bytes at {offset} do not lie within {size} bytes")
    return own
