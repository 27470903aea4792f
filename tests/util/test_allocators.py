"""Which allocator of C a process has, and how another one is put in its place."""

from __future__ import annotations

import gc
import resource
import weakref
from pathlib import Path

import pytest
import torch

from tightfit.util import allocators
from tightfit.util.allocators import (
    GLIBC,
    HeapPages,
    describe_preload,
    find_tcmalloc,
    hold_heap_pages,
    preload_settings,
    release_free_memory,
    running_allocator,
)

LINE = "7f0000000000-7f0000001000 r-xp 00000000 fe:00 17 /usr/lib/x86_64-linux-gnu/{}"


@pytest.mark.parametrize(
    ("library", "name"),
    [
        ("libc.so.6", GLIBC),
        ("libtcmalloc_minimal.so.4.5.10", "tcmalloc"),
        ("libjemalloc.so.2", "jemalloc"),
        ("libmimalloc.so.2.0", "mimalloc"),
        ("libnot_tcmalloc.so", GLIBC),
    ],
)
def test_an_allocator_is_known_by_its_library(library: str, name: str) -> None:
    assert running_allocator(["7f-80 rw-p 0 0:0 0", LINE.format(library)]) == name


def test_tcmalloc_is_found_where_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "libtcmalloc.so.4").touch()
    assert find_tcmalloc([tmp_path]) == tmp_path / "libtcmalloc.so.4"
    (tmp_path / "libtcmalloc_minimal.so.4").touch()
    assert find_tcmalloc([tmp_path]) == tmp_path / "libtcmalloc_minimal.so.4"
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    assert find_tcmalloc() == tmp_path / "libtcmalloc_minimal.so.4"


def test_only_glibc_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(allocators, "find_tcmalloc", lambda: Path("/lib/libtcmalloc.so.4"))
    assert preload_settings() == {"LD_PRELOAD": "/lib/libtcmalloc.so.4"}
    assert preload_settings("/lib/mine.so") == {"LD_PRELOAD": "/lib/libtcmalloc.so.4:/lib/mine.so"}
    assert preload_settings("/lib/libjemalloc.so.2") == {}
    monkeypatch.setattr(allocators, "running_allocator", lambda: GLIBC)
    monkeypatch.delenv("LD_PRELOAD", raising=False)
    assert describe_preload() == "LD_PRELOAD=/lib/libtcmalloc.so.4 python"
    monkeypatch.setattr(allocators, "running_allocator", lambda: "jemalloc")
    assert describe_preload() == ""
    monkeypatch.setattr(allocators, "find_tcmalloc", lambda: None)
    assert preload_settings() == {}


def test_garbage_goes_before_its_pages() -> None:
    class Cycle:
        def __init__(self) -> None:
            self.own = self

    cycle = Cycle()
    gone = weakref.ref(cycle)
    gc.disable()
    try:
        del cycle
        assert gone() is not None
        release_free_memory()
    finally:
        gc.enable()
    assert gone() is None


def new_pages(size: int) -> int:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    torch.empty(size, dtype=torch.uint8).fill_(1)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


@pytest.mark.skipif(running_allocator() != GLIBC, reason="is about the heap of glibc")
def test_a_call_behind_its_heap_pages_takes_hardly_any_new_ones() -> None:
    """As a call of a step does: 4,096 pages where the heap is as an earlier call leaves it."""
    size = 16 << 20
    with hold_heap_pages():
        heap = HeapPages(size + (64 << 10))
        found = []
        for _ in range(20):
            heap.touch()
            found.append(new_pages(size))
    assert sorted(found)[len(found) // 2] < 32, found


def test_heap_pages_of_other_allocators_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(allocators, "running_allocator", lambda: "tcmalloc")
    monkeypatch.setattr(allocators.ctypes, "CDLL", lambda _: pytest.fail("the allocator is set"))
    with hold_heap_pages():
        HeapPages(1 << 20).touch()
