"""The caching allocator on CUDA, played on paper: traces by hand, and what holds of all traces."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.stages.simulate.allocator_traces import (
    AllocatorEvent,
    AllocatorResult,
    AllocEvent,
    FreeEvent,
    simulate_allocator,
    trace_events,
    trace_peak_reserved,
)
from tightfit.stages.simulate.allocator_settings import MIB, AllocatorSettings, parse_settings
from tightfit.stages.simulate.caching_allocator import (
    AllocatorBytes,
    CachingAllocator,
    SimulatedOutOfMemoryError,
)
from tightfit.util.errors import ConfigError

KIB = 1024
ROOT = Path(__file__).parents[3]


def play(*words: str, settings: str = "", capacity: int | None = None) -> AllocatorResult:
    """Plays events such as "a 3MiB" (allocate) and "a" (free)."""
    names: dict[str, int] = {}
    events: list[AllocatorEvent] = []
    for word in words:
        name, _, size = word.partition(" ")
        number = names.setdefault(name, len(names))
        if not size:
            events.append(FreeEvent(number))
            continue
        unit = MIB if size.endswith("M") else KIB if size.endswith("K") else 1
        events.append(AllocEvent(number, int(float(size.rstrip("MK")) * unit)))
    return simulate_allocator(events, parse_settings(settings), capacity)


def test_sizes_are_multiples_of_512_bytes() -> None:
    assert play("a 1").peak == AllocatorBytes(1, 512, 2 * MIB)
    assert play("a 513", "b 512").peak == AllocatorBytes(1025, 1536, 2 * MIB)
    assert play("a 0", "a").peak == AllocatorBytes(0, 0, 0)


@pytest.mark.parametrize(
    ("size", "reserved"),
    [
        ("1M", 2 * MIB),
        ("1048577", 20 * MIB),
        ("9.5M", 20 * MIB),
        ("10M", 10 * MIB),
        ("10.1M", 12 * MIB),
        ("33M", 34 * MIB),
    ],
)
def test_the_segments_of_sizes(size: str, reserved: int) -> None:
    assert play(f"a {size}").peak.reserved == reserved


def test_small_segments_are_shared_and_large_ones_apart() -> None:
    assert play("a 1M", "b 1M").peak.reserved == 2 * MIB
    assert play("a 1M", "b 1M", "c 1").peak.reserved == 4 * MIB
    assert play("a 1M", "b 2M").peak.reserved == 22 * MIB
    assert play("a 2M", "b 9M", "c 8M").peak.reserved == 20 * MIB
    assert play("a 2M", "b 9M", "c 9.5M").peak.reserved == 40 * MIB


def test_what_is_left_of_a_large_block_stays_with_it_up_to_a_mebibyte() -> None:
    """The whole block then counts as allocated."""
    kept = play("a 12M", "a", "b 11M")
    assert kept.end == AllocatorBytes(11 * MIB, 12 * MIB, 12 * MIB)
    split = play("a 12M", "a", "b 10.5M", "c 1.5M")
    assert split.end == AllocatorBytes(12 * MIB, 12 * MIB, 12 * MIB)


def test_the_smallest_block_that_fits_is_taken() -> None:
    """Free are 16 MiB and 12 MiB; 12 MiB leave room for 16."""
    assert play("a 16M", "b 12M", "a", "b", "c 12M", "d 16M").peak.reserved == 28 * MIB
    assert play("a 16M", "b 12M", "a", "b", "c 13M", "d 16M").peak.reserved == 44 * MIB


def test_freed_neighbors_join() -> None:
    assert play("a 6M", "b 6M", "c 8M", "a", "b", "d 12M").peak.reserved == 20 * MIB
    assert play("a 6M", "b 6M", "c 8M", "a", "c", "d 12M").peak.reserved == 32 * MIB


def test_fragments_cost_segments() -> None:
    """Every other block of 10 MiB is free, none of 20 MiB is."""
    events = [f"{name} 5M" for name in "abcdefgh"]
    freed = play(*events, "a", "c", "e", "g", "x 18M")
    assert freed.peak == AllocatorBytes(40 * MIB, 40 * MIB, 58 * MIB)
    assert freed.end == AllocatorBytes(38 * MIB, 38 * MIB, 58 * MIB)


def test_free_segments_are_given_back_where_memory_ends() -> None:
    end = play("a 30M", "a", "b 40M", capacity=50 * MIB).end
    assert end == AllocatorBytes(40 * MIB, 40 * MIB, 40 * MIB)
    with pytest.raises(
        SimulatedOutOfMemoryError, match="41,943,040 bytes more do not fit beside 20,971,520"
    ):
        play("a 2M", "b 40M", capacity=50 * MIB)


def test_blocks_that_are_not_split() -> None:
    settings = "max_split_size_mb:32,max_non_split_rounding_mb:24"
    unlimited = play("a 64M", "a", "b 20M")
    limited = play("a 64M", "a", "b 20M", settings=settings)
    assert (unlimited.end.reserved, limited.end.reserved) == (64 * MIB, 84 * MIB)
    assert play("a 64M", "a", "b 48M", settings=settings).end.allocated == 64 * MIB
    assert play("a 64M", "a", "b 40M", settings=settings).end.reserved == 104 * MIB


def test_sizes_rounded_to_parts_of_powers_of_two() -> None:
    """PyTorch's own example: of 1200 bytes with 4 divisions, the next of 1280."""
    settings = AllocatorSettings(divisions=dict.fromkeys(range(16), 4))
    assert settings.rounded(1200) == 1536
    assert settings.rounded(4 * 1200) == 4 * 1280
    assert settings.rounded(9 * MIB) == 10 * MIB
    assert settings.rounded(8 * MIB) == 8 * MIB


def test_divisions_of_all_sizes() -> None:
    """A list that names no size is of those above 1 MiB, as in PyTorch 2.11."""
    assert parse_settings("roundup_power2_divisions:4").divisions == dict.fromkeys(range(16), 4)
    above = parse_settings("roundup_power2_divisions:[>:4]").divisions
    assert above == dict.fromkeys(range(1, 16), 4)


def test_where_nothing_was_allocated_nothing_is_taken() -> None:
    assert CachingAllocator(AllocatorSettings()).peak == AllocatorBytes(0, 0, 0)


def test_divisions_by_size() -> None:
    """The values of PyTorch's own test of its parser."""
    text = "roundup_power2_divisions:[64:8,128:2,256:4,512:2,1024:4,>:1]"
    found = parse_settings(text).divisions
    sizes = (32, 64, 128, 256, 512, 1024, 2048, 32768)
    assert [found[size.bit_length() - 1] for size in sizes] == [8, 8, 2, 4, 2, 4, 1, 1]
    settings = AllocatorSettings(divisions=found)
    rounded = {65: 72, 127: 128, 129: 192, 200: 256, 257: 320, 1025: 1280, 2049: 2049}
    assert {size: settings.rounded(size * MIB) // MIB for size in rounded} == rounded


def test_settings_are_read() -> None:
    text = "backend:native, large_segment_size_mb:64, expandable_segments:True"
    assert parse_settings(text) == AllocatorSettings(large_segment=64 * MIB, expandable=True)
    for text in ("backend:cudaMallocAsync", "garbage_collection_threshold:0.8", "odd:1"):
        with pytest.raises(ConfigError, match=f"have {text}, which the prediction"):
            parse_settings(text)
    with pytest.raises(ConfigError, match="have 'odd', which is no option"):
        parse_settings("odd")
    for size in ("²", "9" * 5000):
        with pytest.raises(ConfigError, match=r"have max_split_size_mb:.*, which the prediction"):
            parse_settings(f"max_split_size_mb:{size}")
    for item in ("64:", "a:8", ">:a", ">:²", "²:8"):
        with pytest.raises(ConfigError, match=f"have the divisions '{item}'"):
            parse_settings(f"roundup_power2_divisions:[{item}]")


def test_expandable_segments_grow_by_pages_and_split_everything() -> None:
    settings = "expandable_segments:True"
    assert play("a 1.5M", settings=settings).peak == AllocatorBytes(
        3 * MIB // 2, 3 * MIB // 2, 20 * MIB
    )
    grown = play("a 15M", "b 10M", "a", "c 30M", settings=settings)
    assert grown.end == AllocatorBytes(40 * MIB, 40 * MIB, 60 * MIB)
    again = play("a 12M", "b 20M", "a", "c 11M", "d 1M", settings=settings)
    assert again.end.allocated == 32 * MIB and again.end.reserved == 42 * MIB


def test_names_are_allocated_and_freed_once() -> None:
    with pytest.raises(ValueError, match="0 is allocated twice"):
        play("a 1", "a 1")
    with pytest.raises(ValueError, match="0 is freed and was not allocated"):
        play("a")


@given(st.integers(0, 2**32), st.sampled_from(["", "expandable_segments:True"]))
def test_what_holds_of_all_traces(seed: int, settings: str) -> None:
    """Requested is the exact sum, allocated and reserved are never less; when all is free, every
    segment is one block again."""
    chance = random.Random(seed)
    events: list[AllocatorEvent] = []
    live: dict[int, int] = {}
    peak = 0
    for name in range(60):
        if live and chance.random() < 0.45:
            freed = chance.choice(sorted(live))
            del live[freed]
            events.append(FreeEvent(freed))
        size = int(2 ** chance.uniform(0, 26))
        live[name] = size
        events.append(AllocEvent(name, size))
        peak = max(peak, sum(live.values()))
    events += [FreeEvent(name) for name in live]
    allocator = CachingAllocator(parse_settings(settings))
    for event in events:
        if isinstance(event, AllocEvent):
            allocator.allocate(event.id, event.bytes)
        else:
            allocator.free(event.id)
    found = AllocatorResult(allocator.peak, allocator.taken())
    assert found == simulate_allocator(events, parse_settings(settings))
    assert found.peak.requested == peak
    assert peak <= found.peak.allocated <= found.peak.reserved
    assert (found.end.requested, found.end.allocated) == (0, 0)
    assert found.end.reserved == found.peak.reserved
    blocks = [*allocator.small.blocks.values(), *allocator.large.blocks.values()]
    assert all(block.before is None and block.after is None for block in blocks)
    assert sum(block.size for block in blocks) == found.end.reserved


def test_a_trace_of_pytorch_is_read() -> None:
    entries = [
        {"action": "free_completed", "addr": 5, "size": 9},
        {"action": "segment_alloc", "addr": 0, "size": 2 * MIB},
        {"action": "alloc", "addr": 0, "size": 700},
        {"action": "free_requested", "addr": 0, "size": 700},
        {"action": "free_completed", "addr": 0, "size": 700},
        {"action": "alloc", "addr": 0, "size": 800},
    ]
    assert trace_events(entries) == [AllocEvent(2, 700), FreeEvent(2), AllocEvent(5, 800)]
    assert simulate_allocator(trace_events(entries)).peak.reserved == trace_peak_reserved(entries)


PLAYED = """
import os, random, torch
from tightfit.stages.simulate.caching_allocator import AllocatorBytes
from tests.stages.simulate.allocator_traces import simulate_allocator, trace_events
from tightfit.stages.simulate.allocator_settings import parse_settings

torch.cuda.init()
chance = random.Random(3)
torch.cuda.memory._record_memory_history(context=None)
live = []
for _ in range(400):
    if live and chance.random() < 0.5:
        del live[chance.randrange(len(live))]
    size = int(2 ** chance.uniform(0, 26))
    live.append(torch.empty(size, dtype=torch.uint8, device="cuda"))
entries = torch.cuda.memory._snapshot()["device_traces"][torch.cuda.current_device()]
set_to = os.environ.get("PYTORCH_ALLOC_CONF") or os.environ.get("PYTORCH_CUDA_ALLOC_CONF", "")
found = simulate_allocator(trace_events(entries), parse_settings(set_to)).end
counters = torch.cuda.memory_stats()
names = ("requested", "allocated", "reserved")
measured = AllocatorBytes(*(counters[f"{name}_bytes.all.current"] for name in names))
assert found == measured, (found, measured)
"""


@pytest.mark.cuda
def test_the_simulation_takes_what_pytorch_does() -> None:
    """In a process of its own, whose allocator has nothing yet."""
    done = subprocess.run(
        [sys.executable, "-c", PLAYED], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
