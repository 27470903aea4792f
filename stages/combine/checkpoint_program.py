"""Which ops selective checkpointing saves within a budget: an integer program.

In this mechanism a block's recomputation runs each op but the saved ones, so that saving an op
saves its own time and nothing else. Its outputs are then there from the position at which the
forward would free them to that of the recomputation that would make them anew. Peaks are hence sums
over saved ops, and the fastest policy is that of an integer program with a row for each stretch of
the step. A block that is not checkpointed keeps what its backward reads, and takes no time again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeAlias

import numpy as np

from tightfit.schemas.checkpoint_recording import CheckpointRecording
from tightfit.stages.combine.milp import (
    ZERO_TERM,
    LinearTerm,
    MilpBuilder,
    SolverLimits,
    solve_milp,
)

MILP_LIMITS = SolverLimits(gap=2e-4, nodes=2_000, checks=2_000, seconds=20.0)
MAX_OPS = 4_000
"""At most so many ops are decided on, those that take longest for their bytes."""
MIN_SECONDS = 1e-7
"""Ops that take less are not worth an entry."""


Key: TypeAlias = tuple[int, int]
"""A decision: a block's number and the position of one of its ops, or `WHOLE_BLOCK`."""
WHOLE_BLOCK = -1
"""Stands for a block that is not checkpointed at all."""


@dataclass(frozen=True)
class SavedOps:
    """A policy.

    Attributes:
        blocks: For each block of the recording the positions of saved ops in its forward, None for
            a block that is not checkpointed.
        peak: Most bytes of the step beyond those that were there before it.
        seconds: Time of the step.
        bound: Time that no policy of this mechanism within the limit is below.
    """

    blocks: tuple[tuple[int, ...] | None, ...]
    peak: int
    seconds: float
    bound: float


def fastest_policy(
    recording: CheckpointRecording,
    peak_limit: int,
    uniform: bool = False,
    limits: SolverLimits = MILP_LIMITS,
) -> SavedOps | None:
    """The saved ops with which the step takes least time.

    Args:
        recording: Step with nothing saved.
        peak_limit: Most bytes of the step beyond those before it.
        uniform: Whether blocks of the same operators have to save the same ones.
        limits: When the integer program ends.

    Returns:
        The policy; None if none is known that is within the limit.
    """
    whole = [(index, WHOLE_BLOCK) for index in range(len(recording.blocks))]
    if saved_peak(recording, whole) <= peak_limit:
        return _build_saved_ops(recording, whole, None)
    builder = MilpBuilder()
    terms = _add_decisions(builder, recording, uniform)
    _add_memory_rows(builder, recording, terms, peak_limit)
    _add_order_rows(builder, recording, terms)
    found = solve_milp(builder.sparse(), limits)
    if not len(found.values) and saved_peak(recording, []) > peak_limit:
        return None
    keys = [
        key for key, term in terms.items() if len(found.values) and found.values[term.column] > 0.5
    ]
    return _build_saved_ops(recording, keys, recording.seconds * (1 + found.bound))


def _add_decisions(
    builder: MilpBuilder, recording: CheckpointRecording, uniform: bool
) -> dict[Key, LinearTerm]:
    """A variable for each decision, which costs less than nothing: the share of time it saves."""
    terms: dict[Key, LinearTerm] = {}
    shared: dict[tuple[Hashable, int], LinearTerm] = {}
    for key in _list_decisions(recording):
        block = recording.blocks[key[0]]
        kind = tuple(op.name for op in block.ops) if uniform else key[0]
        if (kind, key[1]) not in shared:
            shared[kind, key[1]] = builder.binary()
        terms[key] = shared[kind, key[1]]
        builder.cost[terms[key].column] -= _saved_seconds(recording, key) / recording.seconds
    return terms


def saved_peak(recording: CheckpointRecording, keys: Iterable[Key]) -> int:
    """The most bytes of the step with ops saved, beyond those that were there before it."""
    recorded = np.array(recording.levels, np.int64)
    levels = recorded.copy()
    for index, number in keys:
        block = recording.blocks[index]
        for begin, end, size in _byte_intervals(recording, index, number):
            levels[begin:end] += size
        if number == WHOLE_BLOCK:
            begin, last = block.recomputation
            levels[begin:last] += recorded[last] - recorded[begin:last]
    return int(levels.max())


def _byte_intervals(
    recording: CheckpointRecording, index: int, number: int
) -> Iterator[tuple[int, int, int]]:
    """Between which positions a decision adds bytes, and how many; without what a block that is
    not checkpointed does not take while it would be recomputed."""
    block = recording.blocks[index]
    if number == WHOLE_BLOCK:
        begin = block.recomputation[0]
        for storage in block.kept:
            yield storage.first, begin, storage.size
        yield max(block.forward[0] - 1, 0), block.frame_end, -recording.frame_bytes
        yield block.recomputation[1], block.frame_end, block.bias_bytes
        return
    op = block.ops[number]
    for storage in op.storages:
        yield storage.first, storage.last, storage.size
    yield op.recomputation, op.recomputation + 1, -op.temporary


def _saved_seconds(recording: CheckpointRecording, key: Key) -> float:
    """The time that a decision saves."""
    block = recording.blocks[key[0]]
    return block.seconds if key[1] == WHOLE_BLOCK else block.ops[key[1]].seconds


def _build_saved_ops(
    recording: CheckpointRecording, keys: Sequence[Key], bound: float | None
) -> SavedOps:
    blocks = tuple(
        None
        if (index, WHOLE_BLOCK) in keys
        else tuple(sorted(number for place, number in keys if place == index))
        for index in range(len(recording.blocks))
    )
    seconds = recording.seconds - sum(_saved_seconds(recording, key) for key in keys)
    least = seconds if bound is None else min(bound, seconds)
    least = max(least, recording.seconds - sum(block.seconds for block in recording.blocks))
    return SavedOps(blocks, saved_peak(recording, keys), seconds, least)


def _list_decisions(recording: CheckpointRecording) -> list[Key]:
    """Each block that may be left without a checkpoint, and each op that may be saved."""
    ops = [
        (index, number)
        for index, block in enumerate(recording.blocks)
        for number, op in enumerate(block.ops)
        if not op.objection and (op.random or op.seconds > MIN_SECONDS)
    ]

    def value(key: Key) -> float:
        op = recording.blocks[key[0]].ops[key[1]]
        return op.seconds / (1 + sum(storage.size for storage in op.storages))

    whole = [(index, WHOLE_BLOCK) for index in range(len(recording.blocks))]
    return whole + sorted(sorted(ops, key=value, reverse=True)[:MAX_OPS])


def _add_memory_rows(
    builder: MilpBuilder,
    recording: CheckpointRecording,
    terms: Mapping[Key, LinearTerm],
    peak_limit: int,
) -> None:
    """A row for each stretch of the step in which the same decisions add bytes."""
    levels = np.array(recording.levels, np.int64)
    changes: dict[int, dict[int, int]] = defaultdict(lambda: defaultdict(int))
    for (index, number), term in terms.items():
        for begin, end, size in _byte_intervals(recording, index, number):
            changes[begin][term.column] += size
            changes[end][term.column] -= size
    for block in recording.blocks:
        for position in block.recomputation:
            changes[position] = changes[position]
    positions = sorted(position for position in changes if position < len(levels))
    rows: dict[frozenset[tuple[int, int]], int] = {}
    current: dict[int, int] = defaultdict(int)
    for begin, end in zip(positions, [*positions[1:], len(levels)], strict=True):
        for column, size in changes[begin].items():
            current[column] += size
        level = int(levels[begin:end].max())
        weights = {column: size for column, size in current.items() if size}
        for index, block in enumerate(recording.blocks):
            first, last = block.recomputation
            if first <= begin < last:
                column = terms[index, WHOLE_BLOCK].column
                weights[column] = weights.get(column, 0) + int(levels[last]) - level
        key = frozenset(weights.items())
        rows[key] = max(rows.get(key, 0), level)
    for key, level in rows.items():
        if key and level + sum(size for _, size in key if size > 0) > peak_limit:
            terms_of_row = [(-float(size), LinearTerm(column)) for column, size in key]
            builder.at_least(float(level - peak_limit), terms_of_row, max(peak_limit, 1))
        elif level > peak_limit:
            builder.possible = False


def _add_order_rows(
    builder: MilpBuilder, recording: CheckpointRecording, terms: Mapping[Key, LinearTerm]
) -> None:
    """In a block that is not checkpointed nothing is saved. If a random op is saved, so are all
    random ops that are recomputed behind it, which would otherwise draw other numbers."""
    for index, block in enumerate(recording.blocks):
        whole = terms[index, WHOLE_BLOCK].column
        random = [
            number for number, op in enumerate(block.ops) if op.random and op.recomputation >= 0
        ]
        for first, second in pairwise(random):
            if (index, first) in terms:
                later = terms.get((index, second), ZERO_TERM)
                builder.add_implication(terms[index, first], [later])
        for number in range(len(block.ops)):
            if (index, number) in terms:
                builder.row_at_most(1.0, {whole: 1.0, terms[index, number].column: 1.0})
