"""A plan with the frontier that it was chosen from, for people to look at and to choose again."""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, overload

from tightfit.schemas.frontier import Frontier
from tightfit.schemas.optimizer_plan import OptimizerStepPrediction
from tightfit.schemas.plan import Plan
from tightfit.util.allocators import describe_preload
from tightfit.util.command_line import format_duration, format_status

if TYPE_CHECKING:
    import torch

MAX_TABLE_ROWS = 12
"""At most so many plans are shown in a table."""


@dataclass(frozen=True)
class FrontierEntry:
    """A plan of a frontier, which `plan(..., budget=entry)` takes.

    Attributes:
        budget: Smallest budget that the plan is within, in bytes of the whole step.
        percent: The same as a share, between 0 and 100; None if it is none.
        peak: Bytes of the step beyond parameters, buffers and inputs.
        seconds: Predicted time of a step.
        relative_seconds: Predicted time relative to that of the step that keeps everything.

    Example:
        >>> entry = plan.frontier[3]
        >>> print(entry.budget, entry.relative_seconds)
    """

    budget: int
    percent: float | None
    peak: int
    seconds: float
    relative_seconds: float


def _round_up_percent(percent: float, digits: int) -> float:
    """A percentage that, as a budget, is not below what it stands for; at most 100."""
    return min(math.ceil(percent * 10**digits) / 10**digits, 100.0)


def _pareto_entries(choices: Iterable[FrontierEntry]) -> list[FrontierEntry]:
    """The choices that no other beats in both budget and time, by falling budget."""
    found: list[FrontierEntry] = []
    for choice in sorted(choices, key=lambda choice: (choice.budget, choice.seconds)):
        if not found or choice.seconds < found[-1].seconds:
            found.append(choice)
    return found[::-1]


class FrontierEntries(Sequence[FrontierEntry]):
    """The plans of a frontier, with the one that was made, from most to least memory.

    It prints as a table, and in a notebook as a table with a picture.

    Attributes:
        model: Name of the model.
        strategy: Name of the strategy.
        keep_all: Bytes of the whole step that keeps everything.
        chosen: Index of the plan that was made, None if it is none of them.

    Example:
        >>> module, plan = tightfit.plan(model, (x,), budget="50%")
        >>> print(plan.frontier)
        >>> module, smaller = tightfit.plan(model, (x,), budget=plan.frontier[-1])
    """

    def __init__(self, frontier: Frontier, plan: Plan, totals: Sequence[int] | None = None) -> None:
        self.model = frontier.model
        self.strategy = frontier.strategy
        before, base = plan.baseline.bytes_before_step, plan.baseline.floor
        self.keep_all = plan.keep_all_total
        sizes = totals or [before + point.peak for point in frontier.points]
        figures = [
            (total, point.peak, point.seconds)
            for total, point in zip(sizes, frontier.points, strict=True)
        ]
        if plan.peak is not None and plan.time is not None:
            total = before + plan.peak if plan.gpu is None else plan.gpu.reserved
            figures.append((total, plan.peak, plan.time))

        def choice(total: int, peak: int, seconds: float) -> FrontierEntry:
            room = self.keep_all - base
            percent = (
                _round_up_percent(100 * (total - base) / room, 6)
                if room > 0 and base < total <= base + room
                else None
            )
            slower = seconds / frontier.keep_all_seconds if frontier.keep_all_seconds else 1.0
            return FrontierEntry(total, percent, peak, seconds, slower)

        self._choices = _pareto_entries(choice(*figure) for figure in figures)
        peaks = [choice.peak for choice in self._choices]
        self.chosen = peaks.index(plan.peak) if plan.peak in peaks else None

    def __len__(self) -> int:
        return len(self._choices)

    @overload
    def __getitem__(self, index: int) -> FrontierEntry: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[FrontierEntry]: ...

    def __getitem__(self, index: int | slice) -> FrontierEntry | Sequence[FrontierEntry]:
        return self._choices[index]

    def __str__(self) -> str:
        rows = [self._cells(number) for number in self._shown()]
        table = [("", "budget", "percent", "time"), *rows]
        widths = [max(len(row[column]) for row in table) for column in range(4)]
        lines = [
            " ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
            for row in table
        ]
        return "\n".join([f"{self._title()}:", *lines])

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{name}</th>" for name in ("", "budget", "percent", "time"))
        rows = []
        for number in self._shown():
            bold = ' style="font-weight:bold"' if number == self.chosen else ""
            cells = "".join(f"<td>{cell}</td>" for cell in self._cells(number))
            rows.append(f"<tr{bold}>{cells}</tr>")
        table = f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
        return f"<p>{html.escape(self._title())}</p>{self._picture()}{table}"

    def _title(self) -> str:
        return (
            f"{len(self)} plans of {self.strategy} for {self.model}; keeping everything takes "
            f"{self.keep_all:,} bytes"
        )

    def _shown(self) -> Iterator[int]:
        """The numbers of the plans in a table: first, last, the chosen one and some between."""
        last = len(self) - 1
        steps = min(last, MAX_TABLE_ROWS - 2)
        numbers = {last * step // steps for step in range(steps + 1)} if steps else {0}
        yield from sorted(numbers if self.chosen is None else numbers | {self.chosen})

    def _cells(self, number: int) -> tuple[str, str, str, str]:
        choice = self[number]
        percent = "" if choice.percent is None else f"{_round_up_percent(choice.percent, 1):.1f}%"
        mark = f"[{number}]" + ("*" if number == self.chosen else " ")
        return mark, f"{choice.budget:,}", percent, f"{choice.relative_seconds:.3f}"

    def _picture(self) -> str:
        """Time over memory, as an SVG of fixed size."""
        width, height, edge = 320, 140, 12
        sizes = [choice.budget for choice in self]
        times = [choice.relative_seconds for choice in self]
        across = (width - 2 * edge) / max(max(sizes) - min(sizes), 1)
        up = (height - 2 * edge) / max(max(times) - min(times), 1e-9)
        places = [
            (edge + (size - min(sizes)) * across, height - edge - (time - min(times)) * up)
            for size, time in zip(sizes, times, strict=True)
        ]
        line = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        dots = "".join(
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{5 if number == self.chosen else 2}">'
            f"<title>{self[number].budget:,} bytes, {self[number].relative_seconds:.3f} "
            "times</title>"
            "</circle>"
            for number, (x, y) in enumerate(places)
        )
        said = "predicted time (up) over memory (to the right)"
        return (
            f'<svg role="img" aria-label="{said}" width="{width}" height="{height}" '
            f'fill="currentColor"><title>{said}</title><polyline points="{line}" fill="none" '
            f'stroke="currentColor"/>{dots}</svg>'
        )


@dataclass(frozen=True)
class ChosenPlan(Plan):
    """A plan with its generated package, and the frontier that it was chosen from.

    Args:
        package: Folder of the generated package, which `load` takes.
        other_shapes: Plans of the other shapes that were planned in the same call.
        replans: Plans that the module has made since, with `on_mismatch="replan"`.
        optimizer: Takes the place of the optimizer that the plan was made with.
        optimizer_step: Prediction of the step with the optimizer's updates, in bytes and seconds.
        eager_fallback: Plan of eager's kernels that the package of one of fused kernels has, too.
        outputs_without_gradient: Parts of the model's output that the planned loss does not use. A
            gradient that they receive is refused: plan without a loss, or with one that uses them.

    Example:
        >>> module, plan = tightfit.plan(model, (x,), budget="min")
        >>> print(plan.summary())
        >>> module, plan = tightfit.plan(model, (x,), budget=plan.frontier[3])
    """

    package: Path = field(kw_only=True)
    other_shapes: tuple[ChosenPlan, ...] = field(default=(), kw_only=True, repr=False)
    replans: list[ChosenPlan] = field(default_factory=list, kw_only=True, repr=False, compare=False)
    optimizer: torch.optim.Optimizer | None = field(default=None, kw_only=True, compare=False)
    optimizer_step: OptimizerStepPrediction | None = field(default=None, kw_only=True)
    eager_fallback: ChosenPlan | None = field(default=None, kw_only=True, repr=False)
    outputs_without_gradient: tuple[str, ...] = field(default=(), kw_only=True)
    make_frontier: Callable[[], Frontier] = field(kw_only=True, repr=False, compare=False)
    frontier_bytes: Callable[[Frontier], Sequence[int]] = field(
        kw_only=True, repr=False, compare=False
    )

    @cached_property
    def frontier(self) -> FrontierEntries:
        """All plans of the step; they are made when they are first asked for."""
        found = self.make_frontier()
        totals = None if self.gpu is None else self.frontier_bytes(found)
        return FrontierEntries(found, self, totals)

    @property
    def plans(self) -> tuple[ChosenPlan, ...]:
        """The plans of all shapes that were planned in one call, this one first, then those that
        the module has made since."""
        return self, *self.other_shapes, *self.replans

    @property
    def planned_total(self) -> int:
        """The bytes of the planned step, in all."""
        if self.gpu is not None:
            return self.gpu.reserved
        return self.baseline.bytes_before_step + (self.peak or 0)

    def summary(self) -> str:
        """The plan for people, a line for each figure: status, memory in bytes, time in seconds.

        Example:
            >>> print(plan.summary())
        """
        lines = [format_status(self.status, self.message)]
        if self.optimizer_step is not None:
            lines += [
                f"memory: {self.optimizer_step.total:,} bytes with all updates",
                f"time: {format_duration(self.optimizer_step.seconds)} predicted",
            ]
        elif self.peak is not None and self.time is not None:
            lines += [
                f"memory: {self.planned_total:,} bytes, {self.keep_all_total:,} without a plan",
                f"time: {format_duration(self.time)} predicted, "
                f"{format_duration(self.keep_all.time)} without a plan",
            ]
        if self.dynamic is not None and self.dynamic.small is not None:
            small = self.dynamic.small
            lines.append(
                f"second plan: {self.dynamic.describe_small()}, {format_duration(small.time)} "
                f"predicted at most, {format_duration(small.first_time)} with the first"
            )
        preload = "" if self.gpu is not None else describe_preload()
        if preload:
            lines.append(f"process: start it as `{preload} ...` to keep its RSS to these bytes")
        if self.outputs_without_gradient:
            unused = ", ".join(self.outputs_without_gradient)
            lines.append(f"gradients: none for {unused}, which the planned loss does not use")
        return "\n".join([*lines, f"package: {self.package}"])

    def with_note(self, note: str) -> ChosenPlan:
        """The plan with a clause behind its sentence."""
        return replace(self, message=f"{self.message}; {note}")

    @classmethod
    def of(
        cls,
        plan: Plan,
        make_frontier: Callable[[], Frontier],
        frontier_bytes: Callable[[Frontier], Sequence[int]],
        package: Path,
    ) -> ChosenPlan:
        """A plan with what gives the whole frontier, and the bytes in all of its plans."""
        figures = {part.name: getattr(plan, part.name) for part in fields(Plan)}
        return cls(
            **figures, make_frontier=make_frontier, frontier_bytes=frontier_bytes, package=package
        )
