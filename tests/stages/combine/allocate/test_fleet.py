"""The devices of a machine as allocators see them."""

from __future__ import annotations

import pytest

from schemas.errors import ConfigError
from schemas.machine import Device, Link, Machine
from stages.combine.allocate.fleet import fleet_of

DEVICES = [Device(f"cuda:{number}", 100) for number in range(3)]


def test_a_link_without_bandwidth_is_named() -> None:
    links = [Link(("cuda:0", "cuda:1"), 0.0), Link(("cuda:1", "cuda:2"), 1e9)]
    with pytest.raises(ConfigError, match="the link between cuda:0 and cuda:1 has no bandwidth"):
        fleet_of(Machine("m", DEVICES, [], links), "m.json", True)
