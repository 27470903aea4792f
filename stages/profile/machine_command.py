"""`machine`: measures the link of a device to its offload target and describes the machine."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from tightfit.schemas.machine import read_machine
from tightfit.util.budget import parse_budget
from tightfit.util.command_line import LineageEntry
from tightfit.util.errors import ConfigError

if TYPE_CHECKING:
    from tightfit.schemas.measured_link import MeasuredLink

_DEFAULT_BYTES = 256 << 20
"""Bytes that are moved where nothing is kept."""
_MIN_BYTES, _MAX_BYTES = 1 << 20, 1 << 40
"""Bytes that may be asked for."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the stage."""
    parser.add_argument("--device", default="cpu", help="the device to measure (default: cpu)")
    parser.add_argument("--disk", help="a folder of the disk (default: that of TIGHTFIT_DISK)")
    parser.add_argument(
        "--second-disk", help="a folder of another disk: a second offload tier behind the slow one"
    )
    parser.add_argument(
        "--library", help="store that keeps what is measured with the profile of the device"
    )
    parser.add_argument("--remeasure", action="store_true", help="measure what --library has, too")
    parser.add_argument(
        "--size",
        help="how much to move each way, such as 64MiB (default: 256MiB, 64MiB with --library, "
        "less on a disk without room)",
    )
    parser.add_argument("--out", required=True, help="machine.json to write")


def run(options: argparse.Namespace) -> None:
    """Runs the stage."""
    from tightfit.stages.profile.link_cache import write_machine
    from tightfit.stages.torch_utils.devices import require_device

    size = _parse_size(options.size)
    if options.library is None and options.remeasure:
        raise ConfigError("--remeasure: is for what --library has")
    require_device(options.device)
    far = _get_second_tier_link(options, size) if options.second_disk else None
    own = _get_link(options, size)
    write_machine(Path(options.out), options.device, own, far)
    said = [own.said, *([] if far is None else [far.said])]
    for link, figures in zip(read_machine(options.out).links, said, strict=True):
        shared = "shared by both ways" if link.shared else "each way"
        print(
            f"{link.between[0]} to {link.between[1]}: {link.bandwidth / 1e9:.2f} GB/s {shared}, "
            f"{link.latency * 1e6:.0f} microseconds a transfer; {figures}"
        )


def lineage_entries(options: argparse.Namespace) -> list[LineageEntry]:
    """What `run` made, of nothing but the machine."""
    names = ("device", "disk", "second_disk", "library", "size")
    settings = {name: getattr(options, name) for name in names if getattr(options, name)}
    return [LineageEntry([options.out], [], settings)]


def _parse_size(written: str | None) -> int | None:
    """The bytes that are to be moved, None where that is not said; raises ConfigError where they
    are no size, too few or too many."""
    if written is None:
        return None
    size = parse_budget(written, "--size").size
    if size is None or not _MIN_BYTES <= size <= _MAX_BYTES:
        raise ConfigError(f"--size {written}: expected from 1MiB to 1TiB, such as 64MiB")
    return size


def _get_second_tier_link(options: argparse.Namespace, size: int | None) -> MeasuredLink:
    """The link behind the offload target, as `_link`."""
    from tightfit.stages.profile.link_bandwidth import measure_second_tier_link
    from tightfit.stages.profile.link_cache import cached_second_tier_link

    more = (options.device, options.disk, options.second_disk)
    if options.library is not None:
        again = options.remeasure or size is not None
        return cached_second_tier_link(options.library, *more, again, size)
    try:
        return measure_second_tier_link(*more, size or _DEFAULT_BYTES, size is not None)
    except (RuntimeError, OSError) as error:
        raise ConfigError(f"--second-disk: {error}") from error


def _get_link(options: argparse.Namespace, size: int | None) -> MeasuredLink:
    """The link as it is kept, or as it is measured now."""
    from tightfit.stages.profile.link_bandwidth import measure_offload_link
    from tightfit.stages.profile.link_cache import cached_link

    if options.library is not None:
        again = options.remeasure or size is not None
        return cached_link(options.library, options.device, options.disk, again, size)
    try:
        return measure_offload_link(
            options.device, options.disk, size or _DEFAULT_BYTES, size is not None
        )
    except (RuntimeError, OSError) as error:
        raise ConfigError(f"--disk: {error}") from error
