"""Solves one block in a process of its own: reads the task as JSON from standard input."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

from tightfit.schemas.blocks import planning_graph_from_row
from tightfit.schemas.link import HostLink
from tightfit.stages.solve.option_store import solve_into_store
from tightfit.stages.solve.search import OptionGrid
from tightfit.util.errors import TightfitError


def main() -> None:
    """Solves the block of the task and puts its options into the store; an error is one sentence
    on standard error."""
    task = json.load(sys.stdin)
    threading.Thread(target=_end_with, args=(task["parent"],), daemon=True).start()
    try:
        _solve(task)
    except TightfitError as error:
        sys.exit(str(error))


def _end_with(parent: int) -> None:
    """Ends the process when the one that began it is no more, which may have been killed."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)


def _solve(task: dict[str, Any]) -> None:
    solve_into_store(
        task["digest"],
        planning_graph_from_row(task["problem"]),
        Path(task["store"]),
        task["engine"],
        OptionGrid(**task["grid"]),
        task["made_by"],
        HostLink(*task["link"]) if task["link"] else None,
    )


if __name__ == "__main__":
    main()
