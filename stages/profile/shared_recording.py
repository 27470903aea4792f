"""One recording, and one policy, for all ranks that run the same collectives.

Where a block's operators are collectives, or may be, a rank that saves one and another that runs it
again would wait for each other forever: all have to decide alike, and each has times of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any, TypeVar

from torch import distributed

from tightfit.schemas.checkpoint_recording import CheckpointRecording

T = TypeVar("T")


@dataclass(frozen=True)
class SharedRecording:
    """A recording with the most bytes and the mean times of some ranks.

    Attributes:
        recording: That of all of these ranks.
        ranks: Those that run the same operators as this one; empty if it decides alone.
    """

    recording: CheckpointRecording
    ranks: tuple[int, ...]

    def first_of_ranks(self, make: Callable[[], T]) -> T:
        """What the first of the ranks makes; all ranks have to call this."""
        if not self.ranks:
            return make()
        made: Any = make() if distributed.get_rank() == self.ranks[0] else None
        return _gather_objects(made)[self.ranks[0]]


def share_recording(recording: CheckpointRecording) -> SharedRecording:
    """The recording of all ranks with the same operators, if a block has any that may be
    collective; all ranks have to call this then."""
    if not any(op.collective for block in recording.blocks for op in block.ops):
        return SharedRecording(recording, ())
    found = _gather_objects(recording)
    kind = _operator_names(recording)
    ranks = tuple(rank for rank, other in enumerate(found) if _operator_names(other) == kind)
    return SharedRecording(_merge_recordings([found[rank] for rank in ranks]), ranks)


def _gather_objects(value: T) -> list[T]:
    """The values of all ranks."""
    values: list[T] = [value] * distributed.get_world_size()
    distributed.all_gather_object(values, value)
    return values


def _operator_names(recording: CheckpointRecording) -> tuple[object, ...]:
    """What is equal on ranks that run the same operators."""
    ops = [(block.path, *(op.name for op in block.ops)) for block in recording.blocks]
    return len(recording.levels), *ops


def _merge_recordings(recordings: list[CheckpointRecording]) -> CheckpointRecording:
    first = recordings[0]
    blocks = []
    for at, block in enumerate(first.blocks):
        ops = [
            replace(op, seconds=fmean(other.blocks[at].ops[number].seconds for other in recordings))
            for number, op in enumerate(block.ops)
        ]
        blocks.append(replace(block, ops=tuple(ops)))
    return replace(
        first,
        blocks=tuple(blocks),
        levels=[max(levels) for levels in zip(*(each.levels for each in recordings), strict=True)],
        seconds=fmean(each.seconds for each in recordings),
        bytes_before=max(each.bytes_before for each in recordings),
    )
