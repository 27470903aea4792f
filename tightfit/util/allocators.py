"""The allocator of C that a process runs with, and tcmalloc, which keeps a process to its plan.

The heap of glibc keeps pages between blocks that are free, so that a training process holds up to
twice the bytes of its step. tcmalloc returns and reuses them whole, without more page faults. Only
the environment of a process that starts can choose it.
"""

from __future__ import annotations

import contextlib
import ctypes
import ctypes.util
import functools
import gc
import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

ALLOCATORS = ("tcmalloc", "jemalloc", "mimalloc")
"""Allocators that take the place of that of glibc, by what their libraries' names contain."""
GLIBC = "glibc"
"""The allocator of a process that has none of these."""
MAPPED_BLOCK_BYTES = 32 << 20
"""Blocks of so many bytes and more get pages of their own from glibc, anew each time. It begins
with a lower threshold, which rises to this one once a block of that size has been freed."""
_RELEASED_BYTES = 2 * MAPPED_BLOCK_BYTES
"""Free bytes at the end of the heap from which on glibc returns them, with the threshold above."""
MAX_FREE_BYTES = 128 << 20
"""Bytes of free blocks that measuring may leave in the heap."""
_DEFAULT_MAPPED_BLOCKS = 65536
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_MMAP_MAX = -1, -3, -4
"""Parameters of mallopt(3)."""
_NAMES = ("tcmalloc_minimal", "tcmalloc")
_FOLDERS = ("/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib")


def running_allocator(maps: Iterable[str] | None = None) -> str:
    """The allocator of this process, by its loaded libraries: one of `ALLOCATORS`, or `GLIBC`.

    `maps` are lines as of `/proc/self/maps`, which are read once a process unless given.
    """
    return _process_allocator() if maps is None else _find_allocator(maps)


@functools.cache
def _process_allocator() -> str:
    try:
        return _find_allocator(Path("/proc/self/maps").read_text().splitlines())
    except OSError:
        return GLIBC


def _find_allocator(maps: Iterable[str]) -> str:
    names = {Path(line.split()[-1]).name for line in maps if ".so" in line}
    found = (name for name in ALLOCATORS if any(f"lib{name}" in library for library in names))
    return next(found, GLIBC)


def find_tcmalloc(folders: Iterable[Path | str] | None = None) -> Path | None:
    """The library of tcmalloc in some folders, by default those of LD_LIBRARY_PATH and of the
    system, or where the linker finds it; None where it is not installed (Debian: `apt install
    libtcmalloc-minimal4`)."""
    if not sys.platform.startswith("linux"):
        return None
    if folders is None:
        own = os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep)
        folders = [*filter(None, own), *_FOLDERS]
    for name in _NAMES:
        for folder in folders:
            found = sorted(Path(folder).glob(f"lib{name}.so*"))
            if found:
                return found[0]
    known = (ctypes.util.find_library(name) for name in _NAMES)
    return next((Path(name) for name in known if name), None)


def preload_settings(preloaded: str = "") -> dict[str, str]:
    """What a process needs in its environment to run with tcmalloc; nothing where it is not
    installed, or where what is `preloaded` has an allocator already."""
    library = find_tcmalloc()
    if library is None or any(name in preloaded for name in ALLOCATORS):
        return {}
    return {"LD_PRELOAD": f"{library}:{preloaded}".rstrip(":")}


def describe_preload() -> str:
    """What a user types to run this process with tcmalloc; "" where it would not help, or is not
    installed."""
    if running_allocator() != GLIBC:
        return ""
    found = preload_settings(os.environ.get("LD_PRELOAD", ""))
    return " ".join([*(f"{name}={value}" for name, value in found.items()), "python"]) * bool(found)


def release_free_memory() -> None:
    """Collects garbage and gives pages that the allocator of C has free back to the system."""
    gc.collect()
    names = ("malloc_trim", "MallocExtension_ReleaseFreeMemory")
    for name, given in zip(names, ((0,), ()), strict=True):
        with contextlib.suppress(OSError, AttributeError):
            getattr(ctypes.CDLL(None), name)(*given)


@contextlib.contextmanager
def hold_heap_pages() -> Iterator[None]:
    """glibc's heap keeps its pages meanwhile, and has the thresholds of a process that has trained
    for some steps; other allocators are left as they are."""
    if not _has_heap():
        yield
        return
    mallopt = ctypes.CDLL(None).mallopt
    mallopt(_M_MMAP_THRESHOLD, MAPPED_BLOCK_BYTES)
    mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)
    try:
        yield
    finally:
        mallopt(_M_TRIM_THRESHOLD, _RELEASED_BYTES)


class HeapPages:
    """Keeps pages of glibc's heap in memory for a call, as a step finds those that the steps before
    it have used: its blocks below `MAPPED_BLOCK_BYTES` then take no new ones.

    Until 2.37 glibc cannot give a free block to an aligned request of the same size, so that an op
    that is called again and again would take new pages each time. Free blocks that this leaves are
    returned when they have `MAX_FREE_BYTES`. Other allocators are left as they are.
    """

    def __init__(self, size: int) -> None:
        self.size = size if _has_heap() else 0
        self._taken = 0

    def touch(self) -> None:
        """Leaves `size` bytes of the heap free, in one piece, with their pages in memory."""
        if not self.size:
            return
        libc = ctypes.CDLL(None)
        libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, (ctypes.c_size_t,)
        libc.free.restype, libc.free.argtypes = None, (ctypes.c_void_p,)
        if self._taken + self.size > MAX_FREE_BYTES:
            libc.malloc_trim(0)
            self._taken = 0
        libc.mallopt(_M_MMAP_MAX, 0)
        try:
            block = libc.malloc(self.size)
        finally:
            libc.mallopt(_M_MMAP_MAX, _DEFAULT_MAPPED_BLOCKS)
        if block:
            ctypes.memset(block, 0, self.size)
            libc.free(block)
            self._taken += self.size


def _has_heap() -> bool:
    return sys.platform.startswith("linux") and running_allocator() == GLIBC
