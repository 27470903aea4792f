"""`machine`: measures the link of a device to its slow memory and describes the machine."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from schemas.derived import Derived
from schemas.errors import ConfigError
from schemas.machine import read_machine

if TYPE_CHECKING:
    from schemas.measured_link import MeasuredLink

_MIB = 1 << 20
_ALONE = 256
"""MiB that are moved where nothing is kept."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the stage."""
    parser.add_argument("--device", default="cpu", help="the device to measure (default: cpu)")
    parser.add_argument("--disk", help="a folder of the disk (default: that of TIGHTFIT_DISK)")
    parser.add_argument(
        "--far-disk", help="a folder of another disk: a third memory behind the slow one"
    )
    parser.add_argument(
        "--library", help="store that keeps what is measured with the profile of the device"
    )
    parser.add_argument("--remeasure", action="store_true", help="measure what --library has, too")
    parser.add_argument(
        "--size",
        type=int,
        help="MiB to move each way (default: 256, 64 with --library, less on a disk without room)",
    )
    parser.add_argument("--out", required=True, help="machine.json to write")


def run(options: argparse.Namespace) -> None:
    """Runs the stage."""
    from stages.device.devices import require_device
    from stages.profile.kept_links import write_machine

    if options.size is not None and not 1 <= options.size <= 1 << 20:
        raise ConfigError(f"--size {options.size}: expected MiB from 1 to {1 << 20}")
    if options.library is None and options.remeasure:
        raise ConfigError("--remeasure: is for what --library has")
    require_device(options.device)
    far = _far_link(options) if options.far_disk else None
    own = _link(options)
    write_machine(Path(options.out), options.device, own, far)
    said = [own.said, *([] if far is None else [far.said])]
    for link, figures in zip(read_machine(options.out).links, said, strict=True):
        shared = "shared by both ways" if link.shared else "each way"
        print(
            f"{link.between[0]} to {link.between[1]}: {link.bandwidth / 1e9:.2f} GB/s {shared}, "
            f"{link.latency * 1e6:.0f} microseconds a transfer; {figures}"
        )


def derived(options: argparse.Namespace) -> list[Derived]:
    """What `run` made, of nothing but the machine."""
    names = ("device", "disk", "far_disk", "library", "size")
    settings = {name: getattr(options, name) for name in names if getattr(options, name)}
    return [Derived([options.out], [], settings)]


def _far_link(options: argparse.Namespace) -> MeasuredLink:
    """The link behind the slow memory, as `_link`."""
    from stages.profile.kept_links import kept_far_link
    from stages.profile.links import measured_far

    more = (options.device, options.disk, options.far_disk)
    if options.library is not None:
        again = options.remeasure or options.size is not None
        size = None if options.size is None else options.size * _MIB
        return kept_far_link(options.library, *more, again, size)
    try:
        return measured_far(*more, (options.size or _ALONE) * _MIB, options.size is not None)
    except (RuntimeError, OSError) as error:
        raise ConfigError(f"--far-disk: {error}") from error


def _link(options: argparse.Namespace) -> MeasuredLink:
    """The link as it is kept, or as it is measured now."""
    from stages.profile.kept_links import kept_link
    from stages.profile.links import measured

    if options.library is not None:
        again = options.remeasure or options.size is not None
        size = None if options.size is None else options.size * _MIB
        return kept_link(options.library, options.device, options.disk, again, size)
    try:
        exact = options.size is not None
        return measured(options.device, options.disk, (options.size or _ALONE) * _MIB, exact)
    except (RuntimeError, OSError) as error:
        raise ConfigError(f"--disk: {error}") from error
