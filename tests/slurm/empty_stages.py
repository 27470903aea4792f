"""Stands in for `tightfit/__main__.py`: stages that make their files and put nothing in them."""

from __future__ import annotations

import sys
from pathlib import Path

POINT = ("sequence.arrow", "schedule.arrow", "plan.json")


def main(words: list[str]) -> None:
    """Makes what a stage is asked to write."""
    out = Path(words[words.index("--out") + 1])
    if words[0] == "generate" or "--budget" in words:
        out.mkdir(parents=True, exist_ok=True)
    else:
        out.touch()
    if "--budget" in words:
        for name in POINT:
            (out / name).touch()
    for option in ("--timeline", "--done"):
        if option in words:
            Path(words[words.index(option) + 1]).touch()


if __name__ == "__main__":
    main(sys.argv[1:])
