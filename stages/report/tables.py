"""What plans take of a GPU, and what they send to another memory, as tables of their own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from tightfit.schemas.measurement import Measurement
from tightfit.schemas.plan import GpuMemory, Plan
from tightfit.stages.report.words import duration, size

if TYPE_CHECKING:
    from rich.table import Table

GPU_TITLE = "Of the GPU in all, with parameters and inputs"
GPU_HEADS = ("requested", "allocated", "reserved", "on new inputs", "ahead", "context")
SLOW_TITLE = "Transfers to another memory, predicted and measured"
SLOW_HEADS = ("in the other memory", "measured", "step", "measured", "of it waiting", "measured")


class Row(Protocol):
    """One plan in such a table."""

    @property
    def place(self) -> tuple[str, str, str]:
        """Its model, strategy and budget."""

    def cells(self) -> list[str]:
        """What stands behind these, below the table's heads."""


def table_of(title: str, heads: Sequence[str], rows: Sequence[Row]) -> Table:
    """The table of some plans."""
    from rich.table import Table

    table = Table(header_style="bold", title=title)
    for name in ("model", "strategy"):
        table.add_column(name, overflow="fold")
    for name in ("budget", *heads):
        table.add_column(name, justify="right", overflow="fold")
    for row in rows:
        table.add_row(*row.place, *row.cells())
    return table


@dataclass(frozen=True)
class GpuRow:
    """What one plan takes of a GPU, and what was measured of it; budgets bound what is reserved on
    new inputs."""

    place: tuple[str, str, str]
    foretold: GpuMemory
    found: Measurement | None

    def cells(self) -> list[str]:
        """The cells below `GPU_HEADS`: what was foretold and, where it was measured, found."""
        gpu, found = self.foretold, self.found
        allocated = None if found is None else found.allocated_peak
        reserved = None if found is None else found.reserved_peak
        context = None if found is None else found.context
        return [
            size(gpu.requested),
            _beside(gpu.allocated, allocated),
            _beside(gpu.reserved, reserved),
            size(gpu.renewed),
            size(gpu.arena) if gpu.arena else "",
            "not measured" if context is None else size(context),
        ]


@dataclass(frozen=True)
class SlowRow:
    """One plan with transfers, and what was measured of it."""

    place: tuple[str, str, str]
    plan: Plan
    found: Measurement | None

    def cells(self) -> list[str]:
        """The cells below `SLOW_HEADS`, each figure as predicted and as measured."""
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


def _beside(foretold: int, measured: int | None) -> str:
    return size(foretold) if measured is None else f"{size(foretold)}, measured {size(measured)}"


def _seconds(seconds: float | None) -> str:
    return "" if seconds is None else duration(seconds)
