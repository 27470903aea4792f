"""The tables of the summary beside that of all plans: what plans take of a GPU, and what they send
to an offload target."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from tightfit.schemas.measurement import Measurement
from tightfit.schemas.plan import GpuMemory, Plan
from tightfit.stages.report.formatting import format_bytes, format_duration

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

GPU_TITLE = "Of the GPU in all, with parameters and inputs"
GPU_HEADS = ("requested", "allocated", "reserved", "on new inputs", "ahead", "context")
OFFLOAD_TITLE = "Transfers to an offload target, predicted and measured"
OFFLOAD_HEADS = (
    "in the offload target",
    "measured",
    "step",
    "measured",
    "of it waiting",
    "measured",
)


class SummaryTableRow(Protocol):
    """One plan in such a table."""

    @property
    def place(self) -> tuple[str, str, str]:
        """Its model, strategy and budget."""

    def cells(self) -> list[str]:
        """What stands behind these, below the table's heads."""


def build_console(width: int | None = None) -> Console:
    """The console that tables are printed on, by default as wide as its terminal. It raises
    BrokenPipeError if nobody reads the output any more, which Rich takes for an error."""
    from rich.console import Console

    class PipedConsole(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError

    return PipedConsole(width=width)


def build_rich_table(title: str, heads: Sequence[str], rows: Sequence[SummaryTableRow]) -> Table:
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
    predicted: GpuMemory
    found: Measurement | None

    def cells(self) -> list[str]:
        """The cells below `GPU_HEADS`: what was foretold and, where it was measured, found."""
        gpu, found = self.predicted, self.found
        allocated = None if found is None else found.allocated_peak
        reserved = None if found is None else found.reserved_peak
        context = None if found is None else found.cuda_context
        return [
            format_bytes(gpu.requested),
            _predicted_and_measured(gpu.allocated, allocated),
            _predicted_and_measured(gpu.reserved, reserved),
            format_bytes(gpu.steady_reserved),
            format_bytes(gpu.arena) if gpu.arena else "",
            "not measured" if context is None else format_bytes(context),
        ]


@dataclass(frozen=True)
class OffloadRow:
    """One plan with transfers, and what was measured of it."""

    place: tuple[str, str, str]
    plan: Plan
    found: Measurement | None

    def cells(self) -> list[str]:
        """The cells below `OFFLOAD_HEADS`, each figure as predicted and as measured."""
        moved, found = self.plan.transfers, self.found
        there = None if moved is None else moved.host_peak
        if found is not None and found.predicted_offload_peak is not None:
            there = found.predicted_offload_peak  # of a whole step with what updates pass through
        waited = None if moved is None else moved.wait_seconds
        return [
            "" if there is None else format_bytes(there),
            "" if found is None or found.offload_peak is None else format_bytes(found.offload_peak),
            format_seconds(self.plan.time),
            format_seconds(None if found is None else found.measured_time),
            format_seconds(waited),
            format_seconds(None if found is None else found.wait_seconds),
        ]


def _predicted_and_measured(foretold: int, measured: int | None) -> str:
    return (
        format_bytes(foretold)
        if measured is None
        else f"{format_bytes(foretold)}, measured {format_bytes(measured)}"
    )


def format_seconds(seconds: float | None) -> str:
    """A time in words, "" for none."""
    return "" if seconds is None else format_duration(seconds)
