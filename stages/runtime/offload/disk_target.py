"""A disk as the offload target of the CPU: bytes in a file that has no name.

No other run can open the file, and nothing of it is left where a process is killed. The file's
bytes are taken of the disk when it is made, so that a disk that is full says so before anything is
sent. Two streams, a thread each, do the transfers of their direction in the order of issue, and one
computes beside the disk.
"""

from __future__ import annotations

import ctypes
import errno
import os
import tempfile
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import IO

import torch

from ..backward_tracker import error_summary
from .target import TargetAccess, TargetWork, TransferHandle, check_region
from .worker_thread import WorkerFuture, WorkerThread

DISK_VARIABLE = "TIGHTFIT_DISK"
"""The environment variable that names the folder, else that of temporary files."""

_unfinished: list[tuple[set[TransferHandle], IO[bytes]]] = []
"""What the garbage collector could not end, since it ran in the stream that moved it."""
_MEMORY_TYPE = ctypes.c_char * (1 << 62)
"""All that an address can begin: a type for each size would be made anew for each transfer."""
_UNSUPPORTED = (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS)


def disk_folder_of(folder: str | os.PathLike[str] | None) -> str:
    """The folder that files go to where `folder` is given or not; raises ValueError where it is
    none."""
    if folder is None or folder == "":
        return os.environ.get(DISK_VARIABLE) or tempfile.gettempdir()
    found = os.fspath(folder) if isinstance(folder, str | os.PathLike) else None
    if not isinstance(found, str):
        raise ValueError(f"disk is {folder!r}, it can be the path of a folder")
    return found


@dataclass(frozen=True)
class DiskFolder:
    """The folder of a disk, whether it was `given` where the disk was made, and as what."""

    path: str
    given: bool
    named: str = "disk"

    def sentence(self, error: OSError, size: int | None = None) -> str:
        """What an error means, and what to do; where a file has no `size` bytes, of these."""
        why = error.strerror or str(error)
        way = f"as {self.named}" if self.given else f"as {self.named}, or in {DISK_VARIABLE}"
        if size is not None:
            return (
                f"the disk of {self.path} does not give the {size} bytes that wait there during a "
                f"step ({why}): free some, or name another folder {way}"
            )
        return (
            f"tensors cannot wait in files of {self.path} ({why}): name a folder of a disk that "
            f"can be written {way}"
        )


class DiskTarget:
    """`size` bytes of a disk; see `OffloadTarget`. Raises RuntimeError, in one sentence, where the
    folder cannot be written, the disk is full, or the file was cut off, and as what another one is
    `named`."""

    def __init__(
        self, size: int, folder: str | os.PathLike[str] | None = None, named: str = "disk"
    ) -> None:
        while _unfinished:
            moving, file = _unfinished.pop()
            _finish_transfers(moving)
            file.close()
        self.size = size
        self.process = os.getpid()
        self.folder = DiskFolder(disk_folder_of(folder), bool(folder), named)
        self.file = _create_file(self.folder, size)
        self.threads = [
            WorkerThread(f"tightfit-{name}") for name in ("to-disk", "from-disk", "beside-disk")
        ]
        self.moving: set[TransferHandle] = set()
        self.failure = ""
        self.ended = weakref.finalize(
            self, _close_disk, self.process, self.moving, self.threads, self.file
        )

    @property
    def healthy(self) -> bool:
        """See `OffloadTarget.sound`."""
        return not self.failure

    def write(self, tensor: torch.Tensor, offset: int, *after: TransferHandle) -> TransferHandle:
        """See `OffloadTarget.write`."""
        return self._issue(0, _write, tensor, offset, after)

    def read(self, tensor: torch.Tensor, offset: int, *after: TransferHandle) -> TransferHandle:
        """See `OffloadTarget.read`."""
        return self._issue(1, _read, tensor, offset, after)

    def beside(self, work: TargetWork, *after: TransferHandle) -> TransferHandle:
        """See `OffloadTarget.beside`: what it reads comes in buffers, and what it writes goes
        back."""
        return self._work(2, work, after)

    def passing(self, leaves: bool, work: TargetWork, *after: TransferHandle) -> TransferHandle:
        """As `beside`, in the stream of a direction: `leaves` for what is written here."""
        return self._work(0 if leaves else 1, work, after)

    def reach(self) -> TargetAccess:
        """See `OffloadTarget.reach`."""
        return _DiskAccess(self.file.fileno(), self.size, self.folder)

    def wait(self, ticket: TransferHandle) -> None:
        """Returns when a transfer is through; the tensor is then no longer held. Where the wait is
        interrupted, it is held on, since a thread still reads or fills it."""
        self._check_process()
        try:
            ticket.done.result()
        except OSError as error:
            self._fail(error)
            raise RuntimeError(self.folder.sentence(error)) from error
        except Exception as error:
            self._fail(error)
            raise
        finally:
            if ticket.done.done():
                ticket.tensor = None
                self.moving.discard(ticket)

    def now(self) -> float:
        """See `OffloadTarget.now`; seconds of the host's clock."""
        return time.perf_counter()

    def passed(self, ticket: TransferHandle) -> tuple[float, float]:
        """See `OffloadTarget.passed`."""
        found: tuple[float, float] = ticket.done.result()
        return found

    @staticmethod
    def seconds(first: float, last: float) -> float:
        """See `OffloadTarget.seconds`."""
        return last - first

    def idle(self) -> None:
        """Returns when all transfers are through; one that fails leaves the disk not `sound`."""
        for error in _finish_transfers(self.moving):
            self._fail(error)

    def close(self) -> None:
        """Waits for all transfers and gives the disk its bytes back."""
        self.ended()

    def _fail(self, error: BaseException) -> None:
        """A transfer has failed; what fails first is told."""
        sentence = (
            self.folder.sentence(error) if isinstance(error, OSError) else error_summary(error)
        )
        self.failure = self.failure or sentence

    def _check_process(self) -> None:
        """A process that was forked has no threads, and would wait for ever."""
        if os.getpid() != self.process:
            raise RuntimeError(
                "tensors wait on a disk for the process that this one was forked from: make what "
                "uses them in this process"
            )

    def check_open(self) -> None:
        """Raises RuntimeError where nothing waits there any more, or not in this process."""
        if self.file.closed:
            raise RuntimeError("the disk has its bytes back, and what waited there is gone")
        self._check_process()

    def _work(
        self, stream: int, work: TargetWork, after: tuple[TransferHandle, ...]
    ) -> TransferHandle:
        self.check_open()
        earlier = [ticket.done for ticket in after]
        done = self.threads[stream].submit(partial(_run_work, earlier, work, self.reach()))
        ticket = TransferHandle(done, None)
        self.moving.add(ticket)
        return ticket

    def _issue(
        self,
        stream: int,
        move: Callable[[int, int, int, int], None],
        tensor: torch.Tensor,
        offset: int,
        after: tuple[TransferHandle, ...],
    ) -> TransferHandle:
        # A thread that held the tensor could be the last to do so, and free it at some later time.
        size = check_region(tensor, offset, self.size)
        self.check_open()
        earlier = [ticket.done for ticket in after]
        where = (self.file.fileno(), tensor.data_ptr(), size, offset)
        whole = self.size if stream == 0 else 0
        done = self.threads[stream].submit(partial(_run_transfer, earlier, move, where, whole))
        ticket = TransferHandle(done, tensor)
        self.moving.add(ticket)
        return ticket


def _create_file(folder: DiskFolder, size: int) -> IO[bytes]:
    """A file without a name that has its bytes of the disk."""
    try:
        file = tempfile.TemporaryFile(dir=folder.path, buffering=0)  # noqa: SIM115 - it stays open
    except OSError as error:
        raise RuntimeError(folder.sentence(error)) from error
    try:
        _allocate_file(file.fileno(), size)
    except OSError as error:
        file.close()
        raise RuntimeError(folder.sentence(error, size)) from error
    return file


def _allocate_file(file: int, size: int) -> None:
    if not size:
        return
    try:
        os.posix_fallocate(file, 0, size)
    except AttributeError:
        os.truncate(file, size)
    except OSError as error:
        if error.errno not in _UNSUPPORTED:
            raise
        os.truncate(file, size)


def _run_transfer(
    earlier: list[WorkerFuture],
    move: Callable[[int, int, int, int], None],
    where: tuple[int, int, int, int],
    whole: int,
) -> tuple[float, float]:
    """Does a transfer, and says when it began and ended; `where` are file, address, size and
    offset. One that writes is told the bytes of the whole file; one that reads, 0, finds out by
    itself what is not there."""
    for done in earlier:
        done.result()
    began = time.perf_counter()
    if whole:
        _check_file_size(where[0], whole)
    if where[2]:
        move(*where)
    return began, time.perf_counter()


def _check_file_size(file: int, end: int) -> None:
    """Raises OSError where a file was cut off: what is written behind the cut would make what was
    there read as zeros."""
    if os.fstat(file).st_size < end:
        raise OSError(errno.EIO, "the file is shorter than what was written")


class _DiskAccess:
    """A file of `size` bytes in a folder for what computes beside it; see `TargetAccess`."""

    def __init__(self, file: int, size: int, folder: DiskFolder) -> None:
        self.file = file
        self.size = size
        self.folder = folder

    def here(self, buffer: torch.Tensor, offset: int) -> torch.Tensor:
        """See `TargetAccess.here`."""
        check_region(buffer, offset, self.size)
        return buffer

    def read(self, buffer: torch.Tensor, offset: int) -> torch.Tensor:
        """See `TargetAccess.read`."""
        self._move(_read, buffer, offset)
        return buffer

    def write(self, tensor: torch.Tensor, offset: int) -> None:
        """See `TargetAccess.write`."""
        self._move(_write, tensor, offset)

    def _move(
        self, move: Callable[[int, int, int, int], None], tensor: torch.Tensor, offset: int
    ) -> None:
        size = check_region(tensor, offset, self.size)
        try:
            _check_file_size(self.file, self.size)
            if size:
                move(self.file, tensor.data_ptr(), size, offset)
        except OSError as error:
            # Said here, since work may reach several disks.
            raise RuntimeError(self.folder.sentence(error)) from error


def _run_work(
    earlier: list[WorkerFuture], work: TargetWork, reach: TargetAccess
) -> tuple[float, float]:
    """Does a work, and says when it began and ended."""
    for done in earlier:
        done.result()
    began = time.perf_counter()
    work(reach)
    return began, time.perf_counter()


def _memory(address: int, size: int) -> memoryview:
    return memoryview(_MEMORY_TYPE.from_address(address)).cast("B")[:size]


def _write(file: int, address: int, size: int, offset: int) -> None:
    rest = _memory(address, size)
    while rest:
        written = os.pwrite(file, rest, offset)
        rest, offset = rest[written:], offset + written


def _read(file: int, address: int, size: int, offset: int) -> None:
    rest = _memory(address, size)
    while rest:
        found = os.preadv(file, [rest], offset)
        if not found:
            raise OSError(errno.EIO, "the file is shorter than what was written")
        rest, offset = rest[found:], offset + found


def _finish_transfers(moving: set[TransferHandle]) -> list[BaseException]:
    """What transfers have failed by, once all are through."""
    errors = []
    for ticket in list(moving):
        errors.append(ticket.done.exception())
        ticket.tensor = None
    moving.clear()
    return [error for error in errors if error is not None]


def _close_disk(
    process: int, moving: set[TransferHandle], threads: list[WorkerThread], file: IO[bytes]
) -> None:
    """Transfers end before what they move is freed. A process that was forked has no threads.

    The garbage collector may call this anywhere: within what a thread needs to end, so that none is
    waited for, or in a stream, whose own transfer cannot be: that is left to the next disk.
    """
    if os.getpid() != process:
        return
    for thread in threads:
        thread.shutdown()
    if any(thread.is_current() for thread in threads):
        _unfinished.append((moving, file))
        return
    _finish_transfers(moving)
    file.close()
