"""What a planned step sends to a slow memory and takes back, in the order of its program.

Tensors are sent by storage, byte for byte, to places that the plan gives them. The memory of a run
is its own; one that has ended leaves it to the next.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Sequence

import torch

from .disk import folder_of
from .memories import slow_memory
from .slow import Slow, Ticket

_idle: list[tuple[tuple[object, ...], Slow]] = []
_MOST_IDLE = 2


class Transfers:
    """The transfers of one run on a device, with `size` bytes of its slow memory, or of a `memory`
    that is there for them; `name`s are those that the plan gives to storages."""

    def __init__(self, device: torch.device, size: int, memory: Slow | None = None) -> None:
        key = (os.getpid(), str(device), size, folder_of(None))
        self.memory = memory or _taken(key) or slow_memory(device, size)
        self.device = device
        self.places: dict[int, int] = {}
        self.sizes: dict[int, int] = {}
        self.moving: dict[int, Ticket] = {}
        weakref.finalize(self, _leave if memory is None else _end, key, self.memory)

    def offload(self, name: int, tensor: torch.Tensor, place: int) -> None:
        """Begins to send the storage of a tensor to a place."""
        whole = _bytes_of(tensor.untyped_storage())
        self.places[name], self.sizes[name] = place, whole.numel()
        self.moving[name] = self.memory.write(whole, place)

    def prefetch(
        self,
        name: int,
        dtype: torch.dtype,
        shape: Sequence[int],
        strides: Sequence[int],
        offset: int,
    ) -> torch.Tensor:
        """A tensor that the storage begins to come back to."""
        earlier = [self.moving[name]] if name in self.moving else []
        whole = torch.empty(self.sizes[name], dtype=torch.uint8, device=self.device)
        self.moving[name] = self.memory.read(whole, self.places[name], *earlier)
        made = torch.empty(0, dtype=dtype, device=self.device)
        return made.set_(whole.untyped_storage(), offset, tuple(shape), tuple(strides))

    def wait(self, name: int) -> None:
        """The run goes on when the last transfer of a storage is through."""
        self.memory.wait(self.moving.pop(name))

    def free(self, name: int) -> None:
        """The place of a storage is free for others."""
        del self.places[name], self.sizes[name]


def _bytes_of(storage: torch.UntypedStorage) -> torch.Tensor:
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)


def _taken(key: tuple[object, ...]) -> Slow | None:
    """A memory that a run of this process has left."""
    for entry in list(_idle):
        if entry[0] == key:
            try:
                _idle.remove(entry)
            except ValueError:
                continue
            return entry[1]
    return None


def _end(key: tuple[object, ...], memory: Slow) -> None:
    """What a run moves is through before anything of it is freed."""
    memory.idle()


def _leave(key: tuple[object, ...], memory: Slow) -> None:
    """The memory of a run that ends is left to the next one."""
    _end(key, memory)
    if memory.sound:
        _idle.append((key, memory))
        del _idle[:-_MOST_IDLE]
