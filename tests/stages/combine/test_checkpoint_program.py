"""The fastest policy of selective checkpointing is that of brute force."""

from __future__ import annotations

import random
from itertools import combinations

import pytest

from tightfit.schemas.checkpoint_recording import (
    BlockOp,
    CheckpointRecording,
    RecordedBlock,
    SavedStorage,
)
from tightfit.stages.combine.checkpoint_program import (
    WHOLE_BLOCK,
    Key,
    fastest_policy,
    saved_peak,
)

OPS = 3


def make_recording(seed: int) -> CheckpointRecording:
    """Two blocks of three ops, which run forward, then the second and the first run again and
    backward."""
    draw = random.Random(seed)
    again = (4 * OPS, 2 * OPS)
    blocks = []
    for index in (0, 1):
        ops, kept = [], []
        for number in range(OPS):
            position = 2 * (again[index] + number)
            size = draw.randrange(1, 60)
            storage = SavedStorage(size, 2 * (OPS * index + number) + 1, position)
            kept += [storage] if draw.random() < 0.5 else []
            objection = "is a view, or writes its input" if draw.random() < 0.2 else ""
            ops.append(
                BlockOp(
                    "aten.mm.default",
                    draw.randrange(1, 9) / 10,
                    position,
                    draw.randrange(0, 9),
                    draw.random() < 0.4,
                    objection=objection,
                    storages=(storage,),
                )
            )
        first = 2 * again[index]
        section = first, first + 2 * OPS - 1
        forward = 2 * OPS * index, 2 * OPS * (index + 1) - 1
        blocks.append(
            RecordedBlock(f"h.{index}", tuple(ops), 0, forward, section, tuple(kept), section[1], 0)
        )
    levels = [draw.randrange(1, 100) for _ in range(2 * 6 * OPS)]
    return CheckpointRecording(tuple(blocks), levels, 9.0, 0, 2)


def is_valid(recording: CheckpointRecording, keys: tuple[Key, ...]) -> bool:
    for index, block in enumerate(recording.blocks):
        numbers = {number for place, number in keys if place == index}
        if WHOLE_BLOCK in numbers and len(numbers) > 1:
            return False
        random_ops = [n for n, op in enumerate(block.ops) if op.random]
        saved = [n in numbers for n in random_ops]
        if sorted(saved) != saved:
            return False
        if any(block.ops[n].objection for n in numbers - {WHOLE_BLOCK}):
            return False
    return True


def seconds_of(recording: CheckpointRecording, keys: tuple[Key, ...]) -> float:
    blocks = recording.blocks
    return recording.seconds - sum(
        blocks[b].seconds if n == WHOLE_BLOCK else blocks[b].ops[n].seconds for b, n in keys
    )


@pytest.mark.parametrize("seed", range(12))
def test_the_fastest_policy_is_that_of_brute_force(seed: int) -> None:
    recording = make_recording(seed)
    least = saved_peak(recording, [])
    everything = [(b, n) for b in (0, 1) for n in range(WHOLE_BLOCK, OPS)]
    chosen = [
        keys
        for count in range(len(everything) + 1)
        for keys in combinations(everything, count)
        if is_valid(recording, keys)
    ]
    for limit in (least, least + 20, least + 60):
        fitting = [keys for keys in chosen if saved_peak(recording, keys) <= limit]
        best = min(seconds_of(recording, keys) for keys in fitting)
        found = fastest_policy(recording, limit)
        assert found is not None
        assert found.peak <= limit
        assert found.seconds == pytest.approx(best, abs=9.0 * 1e-3)
        assert found.bound <= best + 1e-9
    lowest = min(saved_peak(recording, keys) for keys in chosen)
    assert fastest_policy(recording, lowest) is not None
    assert fastest_policy(recording, lowest - 1) is None


@pytest.mark.parametrize("seed", range(4))
def test_a_uniform_policy_saves_the_same_in_all_blocks(seed: int) -> None:
    recording = make_recording(seed)
    limit = saved_peak(recording, []) + 40
    found, free = fastest_policy(recording, limit, uniform=True), fastest_policy(recording, limit)
    assert found is not None and free is not None
    assert found.peak <= limit
    assert found.seconds >= free.bound - 1e-9
    savable = [{n for n, op in enumerate(b.ops) if not op.objection} for b in recording.blocks]
    saved = [set(numbers or ()) for numbers in found.blocks]
    assert saved[0] & savable[1] == saved[1] & savable[0]


def test_without_a_limit_no_block_is_checkpointed() -> None:
    found = fastest_policy(make_recording(0), 10**6)
    assert found is not None
    assert found.blocks == (None, None)
