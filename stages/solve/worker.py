"""Solves one block in a process of its own: reads the task as JSON from standard input."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from schemas.blocks import problem_from_row
from stages.solve.search import Grid
from stages.solve.shelf import solve_to_shelf


def main() -> None:
    """Solves the block of the task and puts its options into the store."""
    task = json.load(sys.stdin)
    solve_to_shelf(
        task["digest"],
        problem_from_row(task["problem"]),
        Path(task["store"]),
        task["engine"],
        Grid(**task["grid"]),
        task["made_by"],
    )


if __name__ == "__main__":
    main()
