"""The allocator of C that a process runs with, and tcmalloc, which keeps a process to its plan.

The heap of glibc keeps pages between blocks that are free, so that a training process holds up to
twice the bytes of its step. tcmalloc returns and reuses them whole, without more page faults. Only
the environment of a process that starts can choose it.
"""

from __future__ import annotations

import contextlib
import ctypes
import ctypes.util
import gc
import os
import sys
from collections.abc import Iterable
from pathlib import Path

ALLOCATORS = ("tcmalloc", "jemalloc", "mimalloc")
"""Allocators that take the place of that of glibc, by what their libraries' names contain."""
GLIBC = "glibc"
"""The allocator of a process that has none of these."""
_NAMES = ("tcmalloc_minimal", "tcmalloc")
_FOLDERS = ("/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib")


def running_allocator(maps: Iterable[str] | None = None) -> str:
    """The allocator of this process, by its loaded libraries: one of `ALLOCATORS`, or `GLIBC`.

    `maps` are lines as of `/proc/self/maps`, which are read unless given.
    """
    if maps is None:
        try:
            maps = Path("/proc/self/maps").read_text().splitlines()
        except OSError:
            return GLIBC
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
