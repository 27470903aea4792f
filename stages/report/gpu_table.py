"""What plans take of a GPU, in all the ways that bytes are counted there, as a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from schemas.measurement import Measurement
from schemas.plan import GpuMemory
from stages.report.words import size

if TYPE_CHECKING:
    from rich.table import Table

HEADS = ("requested", "allocated", "reserved", "on new inputs", "ahead", "context")


@dataclass(frozen=True)
class GpuLine:
    """What one plan takes of a GPU, and what was measured of it."""

    model: str
    strategy: str
    budget: str
    foretold: GpuMemory
    found: Measurement | None

    def cells(self) -> list[str]:
        """The cells below `HEADS`: what was foretold and, where it was measured, what was found."""
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


def _beside(foretold: int, measured: int | None) -> str:
    return size(foretold) if measured is None else f"{size(foretold)}, measured {size(measured)}"


def gpu_table(lines: Sequence[GpuLine]) -> Table:
    """The table of some plans; budgets bound what is reserved on new inputs."""
    from rich.table import Table

    table = Table(header_style="bold", title="Of the GPU in all, with parameters and inputs")
    for name in ("model", "strategy"):
        table.add_column(name, overflow="fold")
    for name in ("budget", *HEADS):
        table.add_column(name, justify="right", overflow="fold")
    for line in lines:
        table.add_row(line.model, line.strategy, line.budget, *line.cells())
    return table
