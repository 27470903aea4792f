"""How people are told times."""

from __future__ import annotations

_TIMES = ((1.0, "s", 2), (1e-3, "ms", 1), (1e-6, "µs", 0))


def duration(seconds: float) -> str:
    """A time in the largest unit that fits: "1.23 s", "412.0 ms", "38 µs"."""
    for unit, name, decimals in _TIMES:
        if abs(seconds) >= unit * 0.9995:
            return f"{seconds / unit:.{decimals}f} {name}"
    return "0 s" if seconds == 0 else f"{seconds * 1e6:.1f} µs"
