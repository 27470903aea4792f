"""`machine`: measures the link of a device to its slow memory and describes the machine."""

from __future__ import annotations

import argparse
from pathlib import Path

from schemas.errors import ConfigError
from schemas.machine import read_machine
from schemas.store import write_json

_MIB = 1 << 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the stage."""
    parser.add_argument("--device", default="cpu", help="the device to measure (default: cpu)")
    parser.add_argument("--disk", help="a folder of the disk (default: that of TIGHTFIT_DISK)")
    parser.add_argument("--size", type=int, default=256, help="MiB to move (default: 256)")
    parser.add_argument("--out", required=True, help="machine.json to write")


def run(options: argparse.Namespace) -> None:
    """Runs the stage."""
    from stages.device.devices import require_device
    from stages.profile.links import machine_of, measure_link

    if not 1 <= options.size <= 1 << 20:
        raise ConfigError(f"--size {options.size}: expected MiB from 1 to {1 << 20}")
    require_device(options.device)
    try:
        speed = measure_link(options.device, options.disk, options.size * _MIB)
    except RuntimeError as error:
        raise ConfigError(f"--disk: {error}") from error
    write_json(Path(options.out), machine_of(options.device, speed, options.disk))
    [link] = read_machine(options.out).links
    shared = "shared by both ways" if link.shared else "each way"
    print(
        f"{link.between[0]} to {link.between[1]}: {link.bandwidth / 1e9:.2f} GB/s {shared}, "
        f"{link.latency * 1e6:.0f} microseconds a transfer"
    )
