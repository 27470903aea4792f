"""Counts what travels to a machine with a GPU: `python -m tests.gpu.bundle_size`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
CARRIED = ("wheels", "gpu-report/plans")
MOST = 64 << 20
"""The most bytes that travel."""


def sizes(root: Path = ROOT) -> dict[str, int]:
    """Bytes of the files of a checkout that git does not ignore, and of what goes with them."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(
        command, cwd=root, capture_output=True, text=True, check=True
    ).stdout.split("\0")
    found = {
        "checkout": sum((root / path).lstat().st_size for path in listed if (root / path).is_file())
    }
    for name in CARRIED:
        found[name] = sum(
            path.stat().st_size for path in (root / name).rglob("*") if path.is_file()
        )
    return found


def main() -> int:
    """Prints the sizes; returns 1 where they are more than may travel."""
    found = sizes()
    for name, size in found.items():
        print(f"{name}: {size / 2**20:.1f} MiB")
    total = sum(found.values())
    print(f"travels: {total / 2**20:.1f} of {MOST >> 20} MiB")
    return int(total > MOST)


if __name__ == "__main__":
    sys.exit(main())
