"""The seconds of views, as runs that read or make their storages come and go."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tightfit.stages.combine.polish.arrays import Arrays
from tightfit.stages.combine.polish.kernel import seconds_of_views
from tightfit.stages.combine.polish.uncounted import inlined

if TYPE_CHECKING:
    from tightfit.stages.combine.polish.state import State


@inlined
def views_read(s: State, a: Arrays, event: int) -> int:
    """The views that an event reads, as bits."""
    run = s.owner[event]
    return a.input_views[a.input_start[s.row[run]] + event - s.event[run]]


@inlined
def begins(s: State, a: Arrays, event: int) -> bool:
    """Whether an event makes a storage whose views are to be made, too."""
    return s.makes[event] and not a.brings[s.node[s.owner[event]]]


@inlined
def viewing(s: State, a: Arrays, storage: int, event: int) -> float:
    """The seconds of the views that are made for an event alone: those that it reads and no other
    read of that life does; where it makes the storage, those that are read before and after it.
    None are for one that brings the storage back."""
    if s.makes[event] and not begins(s, a, event):
        return 0.0
    earlier, later = 0, 0
    other = s.before[event]
    while other >= 0 and not begins(s, a, other):
        if not s.makes[other]:
            earlier |= views_read(s, a, other)
        other = s.before[other]
    other = s.after[event]
    while other >= 0 and not begins(s, a, other):
        if not s.makes[other]:
            later |= views_read(s, a, other)
        other = s.after[other]
    if s.makes[event]:
        return seconds_of_views(a, storage, earlier & later)
    return seconds_of_views(a, storage, views_read(s, a, event) & ~(earlier | later))
