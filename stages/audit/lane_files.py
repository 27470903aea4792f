"""Checks the lanes of a chain with a link to the host against the plan beside them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tightfit.schemas import store
from tightfit.schemas.lanes import read_lanes
from tightfit.schemas.plan import Plan
from tightfit.schemas.sequence import read_sequence
from tightfit.stages.replay.lanes import check_lanes


def lane_complaints(path: Path, plan: Plan, sequence: Path | None, lanes: Path) -> Iterator[str]:
    """What is wrong with the lanes of a plan, a sentence each; raises ScheduleError where they
    could not run so."""
    if sequence is not None:
        ours, theirs = (store.header(file).metadata.get("chain") for file in (lanes, sequence))
        if ours != theirs:
            yield f"{lanes}: is of another chain than {sequence.name}"
            return
    steps = read_lanes(lanes)
    if sequence is not None and read_sequence(sequence) != [step.operation for step in steps]:
        yield f"{lanes}: has other operations than {sequence.name}"
        return
    found, moved = check_lanes(steps), plan.transfers
    if not plan.feasible:
        if steps:
            yield f"{lanes}: has {len(steps)} steps, though the plan is infeasible"
        return
    if moved is None:
        yield f"{path}: says nothing of the transfers in {lanes.name}"
        return
    for name, claimed, played in (
        ("time", plan.time, found.seconds),
        ("left", moved.left, found.left),
        ("returned", moved.returned, found.returned),
        ("host_peak", moved.host_peak, found.host_peak),
        ("waited", moved.waited, found.waited),
    ):
        if claimed != played:
            yield f"{path}: {name} is {claimed}, where the lanes come to {played}"
    if plan.peak is not None and plan.peak < found.live:
        yield f"{path}: peak is {plan.peak}, where {found.live} bytes are there in the lanes"
