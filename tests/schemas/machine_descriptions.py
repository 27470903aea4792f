"""Descriptions of machines to read, sound and amiss."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

DEVICE = {
    "name": "cuda:0",
    "memory": 16_000_000_000,
    "flops": 1e12,
    "bandwidth": 1e11,
    "latency": 1e-6,
}
MACHINE = {"artifact": "tightfit.machine/1", "name": "a GPU", "devices": [DEVICE]}


def described(path: Path, **changes: Any) -> Path:
    """Writes the description of a machine with one device, in which figures are changed."""
    document: dict[str, Any] = copy.deepcopy(MACHINE)
    document["devices"][0].update(changes)
    path.write_text(json.dumps(document))
    return path
