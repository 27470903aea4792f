"""The benchmark's results as Markdown."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.benchmarks.alternating_runs import Result


def result_table(results: Sequence[Result]) -> str:
    """A row a contestant."""
    lines = [
        "| | peak MB | predicted - measured, bytes | accumulating MB | time / eager (quartiles) "
        "| predicted / eager | same bits |",
        "|---|---|---|---|---|---|---|",
    ]
    eager = results[0].seconds
    for result in results:
        low, middle, high = result.ratios
        off = "" if result.predicted_peak is None else f"{result.predicted_peak - result.peak:+d}"
        predicted = result.predicted_seconds
        expected = "" if predicted is None else f"{predicted / eager:.3f}"
        lines.append(
            f"| {result.name} | {result.peak / 1e6:.1f} | {off} "
            f"| {result.accumulating_peak / 1e6:.1f} | {middle:.3f} ({low:.3f}-{high:.3f}) "
            f"| {expected} | {'yes' if result.exact else 'no'} |"
        )
    lines.append(f"\nEager: {eager:.3f} s.\n")
    return "\n".join(lines)


def planning_table(taken: Sequence[tuple[str, float]]) -> str:
    """Seconds by stage and in all."""
    cells = " | ".join(f"{stage} | {seconds:.1f}" for stage, seconds in taken)
    total = sum(seconds for _, seconds in taken)
    return f"\nPlanning, seconds: {cells} | in all {total:.1f}\n"


def table_of_chains(lengths: Sequence[int] = (50, 100, 200, 339, 1100)) -> str:
    """Seconds of the persistent dynamic program with 500 slots, by length of the chain."""
    from tests.benchmarks.long_chains import random_chain, solve_chain

    lines = ["| L | seconds |", "|---|---|"]
    solve_chain(random_chain(150))
    for length in lengths:
        chain = random_chain(length)
        start = time.perf_counter()
        solve_chain(chain)
        lines.append(f"| {length} | {time.perf_counter() - start:.2f} |")
    return "\n".join(lines) + "\n"
