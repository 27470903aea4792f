"""What plans send to another memory, and how long they wait for it, as a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from schemas.measurement import Measurement
from schemas.plan import Plan
from stages.report.words import duration, size

if TYPE_CHECKING:
    from rich.table import Table

HEADS = ("in the other memory", "measured", "step", "measured", "of it waiting", "measured")


@dataclass(frozen=True)
class SlowLine:
    """One plan with transfers, and what was measured of it."""

    model: str
    strategy: str
    budget: str
    plan: Plan
    found: Measurement | None

    def cells(self) -> list[str]:
        """The cells below `HEADS`."""
        moved, found = self.plan.transfers, self.found
        there = None if moved is None else moved.host_peak
        waited = None if moved is None else moved.waited
        return [
            "" if there is None else size(there),
            "" if found is None or found.slow_peak is None else size(found.slow_peak),
            _seconds(self.plan.time),
            _seconds(None if found is None else found.measured_time),
            _seconds(waited),
            _seconds(None if found is None else found.waited),
        ]


def _seconds(seconds: float | None) -> str:
    return "" if seconds is None else duration(seconds)


def slow_table(lines: Sequence[SlowLine]) -> Table:
    """The table of some plans, each figure as predicted and as measured."""
    from rich.table import Table

    table = Table(header_style="bold", title="Transfers to another memory, predicted and measured")
    for name in ("model", "strategy"):
        table.add_column(name, overflow="fold")
    for name in ("budget", *HEADS):
        table.add_column(name, justify="right", overflow="fold")
    for line in lines:
        table.add_row(line.model, line.strategy, line.budget, *line.cells())
    return table
