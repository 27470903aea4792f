"""The allocator of C that a process runs with, and tcmalloc, which keeps a process to its plan.

The heap of glibc keeps pages between blocks that are free, so that a training process holds up to
twice the bytes of its step. tcmalloc returns and reuses them whole, without more page faults. Only
the environment of a process that starts can choose it.
"""

from __future__ import annotations

import ctypes.util
import os
import sys
from collections.abc import Iterable
from pathlib import Path

ALLOCATORS = ("tcmalloc", "jemalloc", "mimalloc")
"""Allocators that take the place of that of glibc, by what their libraries' names contain."""
_NAMES = ("tcmalloc_minimal", "tcmalloc")
_FOLDERS = ("/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib")


def running_allocator(maps: Iterable[str] | None = None) -> str:
    """The allocator of this process, by its loaded libraries: one of `ALLOCATORS`, or "glibc".

    `maps` are lines as of `/proc/self/maps`, which are read unless given.
    """
    if maps is None:
        try:
            maps = Path("/proc/self/maps").read_text().splitlines()
        except OSError:
            return "glibc"
    names = {Path(line.split()[-1]).name for line in maps if ".so" in line}
    found = (name for name in ALLOCATORS if any(f"lib{name}" in library for library in names))
    return next(found, "glibc")


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
