"""What a planned step sends to an offload target and takes back, in the order of its program.

Tensors are sent by storage, byte for byte, to places that the plan gives them. The memory of a run
is its own; one that has ended leaves it to the next.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from .disk_target import disk_folder_of
from .host_target import create_offload_target
from .target import OffloadTarget, TransferHandle

_idle_targets: list[tuple[tuple[object, ...], OffloadTarget]] = []
_MAX_IDLE_TARGETS = 2
TransferInterval = tuple[Any, Any, int]
"""From one moment to another one, and bytes."""


@dataclass
class TransferLog:
    """What one run has moved so far: bytes that `left` and that `returned`, and those that are
    `there` in the offload target, at most `peak`. Between its moments are so many `seconds`: when
    the run `began`, the bytes that were there from a moment on (`line`), from when to when the run
    waited, and for how many bytes (`waits`), and those that were on their way in the stream of a
    direction (`streams`, first what leaves). It holds nothing of the memory."""

    seconds: Callable[[Any, Any], float]
    began: Any
    left: int = 0
    returned: int = 0
    there: int = 0
    peak: int = 0
    line: list[tuple[Any, int]] = field(default_factory=list)
    waits: list[TransferInterval] = field(default_factory=list)
    streams: tuple[list[TransferInterval], list[TransferInterval]] = field(
        default_factory=lambda: ([], [])
    )

    def count(self, size: int, moment: Any) -> None:
        """From a moment on so many bytes more are there."""
        self.there += size
        self.peak = max(self.peak, self.there)
        self.line.append((moment, self.there))

    @property
    def waited(self) -> float:
        """The seconds for which the run has waited."""
        return sum(self.seconds(begin, end) for begin, end, _ in self.waits)

    def since(self, moment: Any) -> float:
        """The seconds from the run's begin to a moment."""
        return self.seconds(self.began, moment)


class TransferSettings:
    """How the runs of a planned module send: to the disk of a `folder`, unless given that which the
    environment names. `last` is what the run has moved that began last."""

    def __init__(self, folder: str | os.PathLike[str] | None = None) -> None:
        self.folder = folder
        self.last: TransferLog | None = None


class StepTransfers:
    """The transfers of one run on a device, with `size` bytes of its offload target, or of a
    `memory` that is there for them; `name`s are those that the plan gives to storages. What `stays`
    where it is has its tensor there: of it nothing moves."""

    def __init__(
        self,
        device: torch.device,
        size: int,
        sending: TransferSettings | None = None,
        memory: OffloadTarget | None = None,
    ) -> None:
        folder = None if sending is None else sending.folder
        key = (os.getpid(), str(device), size, disk_folder_of(folder))
        self.memory = memory or _reuse_target(key) or create_offload_target(device, size, folder)
        self.device = device
        self.places: dict[int, int] = {}
        self.sizes: dict[int, int] = {}
        self.empty: dict[int, torch.UntypedStorage] = {}
        self.stays: dict[int, Any] = {}
        self.moving: dict[int, tuple[bool, TransferHandle]] = {}
        self.moved = TransferLog(self.memory.seconds, self.memory.now())
        if sending is not None:
            sending.last = self.moved
        weakref.finalize(
            self, _return_target if memory is None else _finish_transfers, key, self.memory
        )

    def offload(self, name: int, tensor: torch.Tensor, place: int, arrived: bool = False) -> None:
        """Begins to send the storage of a tensor to a place. What stands for a gradient that is not
        there stays, and so does one that `arrived` and does not fill its storage."""
        if not isinstance(tensor, torch.Tensor) or (arrived and not _fills_storage(tensor)):
            self.stays[name] = tensor
            return
        whole = _storage_bytes(tensor.untyped_storage())
        size = whole.numel()
        self.places[name], self.sizes[name] = place, size
        self.moving[name] = True, self.memory.write(whole, place)
        self.moved.left += size
        self.moved.count(size, self.memory.now())

    def prefetch(
        self,
        name: int,
        dtype: torch.dtype,
        shape: Sequence[int],
        strides: Sequence[int],
        offset: int,
    ) -> torch.Tensor:
        """A tensor that the storage begins to come back to."""
        if name in self.stays:
            return self.stays[name]
        whole = torch.empty(self.sizes[name], dtype=torch.uint8, device=self.device)
        self._come(name, whole)
        made = torch.empty(0, dtype=dtype, device=self.device)
        return made.set_(whole.untyped_storage(), offset, tuple(shape), tuple(strides))

    def release_storage(self, name: int, tensor: torch.Tensor) -> None:
        """The storage of a tensor, which was sent and comes back, gives its bytes back: all tensors
        of it stay what they are, and are not to be read until then."""
        if name in self.stays:
            return
        storage = tensor.untyped_storage()
        storage.resize_(0)
        self.empty[name] = storage

    def restore_storage(self, name: int) -> None:
        """A storage that gave its bytes back takes them anew, and begins to come back."""
        if name in self.stays:
            return
        storage = self.empty.pop(name)
        storage.resize_(self.sizes[name])
        self._come(name, _storage_bytes(storage))

    def wait(self, name: int) -> None:
        """The run goes on when the last transfer of a storage is through."""
        if name in self.stays:
            return
        leaves, ticket = self.moving.pop(name)
        size, begin = self.sizes[name], self.memory.now()
        self.memory.wait(ticket)
        self.moved.waits.append((begin, self.memory.now(), size))
        self.moved.streams[0 if leaves else 1].append((*self.memory.passed(ticket), size))

    def free(self, name: int) -> None:
        """The place of a storage is free for others."""
        if name in self.stays:
            del self.stays[name]
            return
        del self.places[name]
        self.moved.count(-self.sizes.pop(name), self.memory.now())

    def _come(self, name: int, whole: torch.Tensor) -> None:
        earlier = [self.moving[name][1]] if name in self.moving else []
        self.moving[name] = False, self.memory.read(whole, self.places[name], *earlier)
        self.moved.returned += self.sizes[name]


def _fills_storage(tensor: torch.Tensor) -> bool:
    """Whether a tensor has each byte of its storage once."""
    dense = torch.ops.aten.is_non_overlapping_and_dense.default(tensor)
    return bool(dense) and tensor.untyped_storage().nbytes() == tensor.nbytes


def _storage_bytes(storage: torch.UntypedStorage) -> torch.Tensor:
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)


def _reuse_target(key: tuple[object, ...]) -> OffloadTarget | None:
    """A memory that a run of this process has left."""
    for entry in list(_idle_targets):
        if entry[0] == key:
            try:
                _idle_targets.remove(entry)
            except ValueError:
                continue
            return entry[1]
    return None


def _finish_transfers(key: tuple[object, ...], memory: OffloadTarget) -> None:
    """What a run moves is through before anything of it is freed."""
    memory.idle()


def _return_target(key: tuple[object, ...], memory: OffloadTarget) -> None:
    """The memory of a run that ends is left to the next one."""
    _finish_transfers(key, memory)
    if memory.healthy:
        _idle_targets.append((key, memory))
        del _idle_targets[:-_MAX_IDLE_TARGETS]
