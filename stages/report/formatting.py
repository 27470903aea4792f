"""How the report says sizes, times and ratios. Sizes are in decimal units: MB is 1e6 bytes."""

from __future__ import annotations

import re
from collections.abc import Sequence

from tightfit.schemas.graph.fused_groups import is_fused_group, read_group_body
from tightfit.schemas.graph.training_graph import Graph, Op
from tightfit.schemas.measurement import Measurement
from tightfit.util.command_line import format_bytes as format_bytes
from tightfit.util.command_line import format_count as format_count
from tightfit.util.command_line import format_duration as format_duration


def describe_loss(graph: Graph) -> str:
    """Where the loss of a step runs, and what is left to it."""
    if graph.has_loss:
        return "traced with the step"
    room = f", with room for {format_bytes(graph.loss_room)}" if graph.loss_room else ""
    return f"left to the caller{room}"


def format_with_resident(peak: int | None, resident: int | None) -> str:
    """A measured peak, and the RSS of the process where it is known; "" for none."""
    if peak is None:
        return ""
    return format_bytes(peak) + ("" if resident is None else f", RSS {format_bytes(resident)}")


def step_memory_facts(found: Measurement) -> list[tuple[str, str]]:
    """The RSS of a step, beside that of the model's own, and its peak where `.grad` is there."""
    facts = []
    if found.accumulate_peak is not None:
        words = format_exact_bytes(found.accumulate_peak)
        facts.append(("Peak while accumulating gradients", words))
    if found.resident_peak is None:
        return facts
    words = f"{format_exact_bytes(found.resident_peak)} with the allocator of {found.allocator}"
    if found.original_resident_peak is not None:
        words += f", {format_exact_bytes(found.original_resident_peak)} for the model itself"
    return [*facts, ("RSS of the process in a step, measured", words)]


def trim_decimals(words: str) -> str:
    """A size or time without an idle decimal, as an axis says it: "100 MB"."""
    return re.sub(r"\.0+(?=\D|$)", "", words)


def format_exact_bytes(amount: int) -> str:
    """Bytes to the last one: "144,737,240 bytes"."""
    return f"{amount:,} bytes"


RATIO_MARKS = {
    "?": "a quarter of the measured runs takes half again as long as another quarter, or other "
    "work took a fifth of their time: measure again while nothing else runs, or with more pairs",
    "*": "as planned, beside one process: the ranks of these pipelines shared processors, so that "
    "their measured times compare no plans",
}
"""What a mark behind a ratio means."""


def format_ratio(value: float, scattered: bool = False, as_planned: bool = False) -> str:
    """A time relative to another: "1.05x", "1.05x?" where the runs it is of are `scattered`, or
    "1.05x*" if it is predicted, beside others that were measured."""
    return f"{value:.2f}x" + ("*" if as_planned else "?" if scattered else "")


def format_percent(share: float) -> str:
    """A share of one: "4.9%"."""
    return f"{100 * share:.1f}%"


def format_list(items: Sequence[str], most: int = 4) -> str:
    """Items with commas, the rest counted: "a, b and 3 more"."""
    if len(items) <= most:
        return ", ".join(items)
    return f"{', '.join(items[:most])} and {len(items) - most} more"


def short_op_name(target: str) -> str:
    """The short name of an op: "aten.addmm.default" is "addmm"."""
    parts = target.split(".")
    if len(parts) == 3 and parts[0] in ("aten", "prims", "tightfit"):
        return parts[1] if parts[2] == "default" else f"{parts[1]}.{parts[2]}"
    return parts[1] if len(parts) == 2 and parts[0] == "tightfit" else target


def op_label(op: Op) -> str:
    """The short name of an op; that of a group has those of the ops in it."""
    if not is_fused_group(op.target):
        return short_op_name(op.target)
    calls = [short_op_name(call.target).split(".")[0] for call in read_group_body(op).calls]
    return f"group of {format_list([*dict.fromkeys(calls)])}"


def module_pattern(path: str) -> str:
    """A module path with its numbers left open, so that like layers read alike: "h.*.mlp"."""
    return re.sub(r"(?<![^.])\d+(?![^.])", "*", path)
