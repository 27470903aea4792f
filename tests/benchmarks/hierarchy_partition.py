"""How the time of H-Partition grows with the forward."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator

from tests.stages.partition.hierarchy.flows import FAMILIES
from tightfit.stages.partition.hierarchy.h_partition import h_partition

COUNTS = (1_000, 10_000, 100_000, 1_000_000)
HEAD = "| forward | nodes | CPU seconds | clusters by level (distinct) |\n|---|---|---|---|"


def rows_of_hierarchies(counts: Iterable[int] = COUNTS) -> Iterator[str]:
    """Rows of a table in Markdown: CPU seconds of one process, what is compiled being there."""
    for make in FAMILIES.values():
        h_partition(make(200))
    for count in counts:
        for name, make in FAMILIES.items():
            flow = make(count)
            start = time.process_time()
            tree = h_partition(flow)
            seconds = time.process_time() - start
            levels = [
                f"{len(level.sizes)} ({len({row.tobytes() for row in level.digests})})"
                for level in tree.levels
            ]
            yield f"| {name} | {flow.count} | {seconds:.2f} | {', '.join(levels)} |"
