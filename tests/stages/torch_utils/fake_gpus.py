"""Stands in for GPUs where there are none: doubles of the functions of torch.cuda, which write
down which device they were called for."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
import torch


@dataclass
class Gpus:
    """Some devices, one of them current. `calls` is what was asked for, by name and device;
    `requested` are the live bytes of each device, `peaks` the most since the last reset, `traces`
    what its allocator did, `settings` what that was last set to, and `expandable` whether its
    segments are."""

    count: int = 2
    current: int = 0
    calls: list[tuple[str, Any]] = field(default_factory=list)
    requested: dict[int, int] = field(default_factory=dict)
    peaks: dict[int, int] = field(default_factory=dict)
    traces: dict[int, list[dict[str, Any]]] = field(default_factory=dict)
    settings: str = ""
    expandable: bool = False

    def number(self, device: Any = None) -> int:
        """The number of a device, of the current one where none is named."""
        if device is None:
            return self.current
        if isinstance(device, int):
            return device
        index = torch.device(device).index
        return self.current if index is None else index

    def noted(self, name: str) -> Any:
        """A double that writes down its name and device."""

        def double(device: Any = None, *_: Any, **__: Any) -> None:
            self.calls.append((name, self.number(device)))

        return double

    @contextlib.contextmanager
    def entered(self, device: Any) -> Iterator[None]:
        """The double of torch.cuda.device."""
        before, self.current = self.current, self.number(device)
        try:
            yield
        finally:
            self.current = before

    def take(self, device: int, size: int, address: int = 0) -> None:
        """Bytes that are allocated on a device; negative ones are freed."""
        self.requested[device] = self.requested.get(device, 0) + size
        self.peaks[device] = max(self.peaks.get(device, 0), self.requested[device])
        action = "alloc" if size > 0 else "free_completed"
        entry = {"action": action, "addr": address, "size": abs(size)}
        history = self.traces.setdefault(device, [])
        history.append({**entry, "time_us": len(history)})

    def stats(self, device: Any = None) -> dict[str, int]:
        """The double of torch.cuda.memory_stats: blocks of 512 bytes, segments of 2 MiB."""
        number = self.number(device)
        live, most = self.requested.get(number, 0), self.peaks.get(number, 0)
        return {
            "requested_bytes.all.current": live,
            "requested_bytes.all.peak": most,
            "allocated_bytes.all.peak": -(-most // 512) * 512,
            "reserved_bytes.all.peak": _segments(most),
            "reserved_bytes.all.current": _segments(most),
        }

    def free_and_total(self, device: Any = None) -> tuple[int, int]:
        """The double of torch.cuda.mem_get_info: of 8 GiB, a context takes 300 MiB."""
        reserved = self.stats(device)["reserved_bytes.all.current"]
        return (8 << 30) - (300 << 20) - reserved, 8 << 30

    def snapshot(self, device: Any = None) -> dict[str, Any]:
        """The double of torch.cuda.memory._snapshot."""
        traces = [list(self.traces.get(number, [])) for number in range(self.count)]
        return {
            "device_traces": traces,
            "allocator_settings": {
                "PYTORCH_CUDA_ALLOC_CONF": self.settings,
                "expandable_segments": self.expandable,
            },
        }

    def reset(self, device: Any = None) -> None:
        """The double of torch.cuda.reset_peak_memory_stats."""
        number = self.number(device)
        self.peaks[number] = self.requested.get(number, 0)

    def event(self, **_: Any) -> Any:
        """The double of torch.cuda.Event: it takes two milliseconds to the next one."""
        gpus = self

        class Event:
            def record(self) -> None:
                gpus.calls.append(("record", gpus.current))

            def synchronize(self) -> None:
                gpus.calls.append(("wait", gpus.current))

            def elapsed_time(self, other: Any) -> float:
                return 2.0

        return Event()


def _segments(size: int) -> int:
    return -(-size // (2 << 20)) * (2 << 20)


def stand_in(patch: pytest.MonkeyPatch, count: int = 2, current: int = 0) -> Gpus:
    """Puts doubles in the place of torch.cuda."""
    gpus = Gpus(count, current)
    doubles = {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "device_count": lambda: gpus.count,
        "current_device": lambda: gpus.current,
        "device": gpus.entered,
        "synchronize": gpus.noted("synchronize"),
        "empty_cache": gpus.noted("empty_cache"),
        "memory_stats": gpus.stats,
        "mem_get_info": gpus.free_and_total,
        "reset_peak_memory_stats": gpus.reset,
        "Event": gpus.event,
        "_sleep": lambda cycles: gpus.calls.append(("fill", gpus.current)),
        "current_stream": lambda device=None: gpus.event(),
        "get_allocator_backend": lambda: "native",
        "get_device_name": lambda device=None: f"GPU {gpus.number(device)}",
        "get_device_properties": lambda device=None: SimpleNamespace(
            name=f"GPU {gpus.number(device)}", major=9, minor=0, L2_cache_size=1 << 20
        ),
    }
    for name, double in doubles.items():
        patch.setattr(torch.cuda, name, double)
    patch.setattr(torch.cuda.memory, "_snapshot", gpus.snapshot)
    patch.setattr(torch.cuda.memory, "_record_memory_history", lambda *_, **__: None)
    return gpus
