"""A training step as selective checkpointing runs it with nothing saved: what each op took.

Positions are points of the step in order: 2n lies within op n, 2n + 1 between op n and the next.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

NOT_RECOMPUTED = "is not recomputed"
"""The objection to an op behind the end of a block's recomputation."""


@dataclass(frozen=True)
class SavedStorage:
    """A storage that stays longer if it is not recomputed.

    Attributes:
        size: Bytes.
        first: Position from which it is there only because it is not recomputed.
        last: Position of its recomputation, from which it would be there anyway.
    """

    size: int
    first: int
    last: int


@dataclass(frozen=True)
class BlockOp:
    """An op of a block's forward.

    Attributes:
        name: Operator, as "aten.addmm.default".
        seconds: Time of its recomputation; 0 if the block's recomputation ends before it.
        recomputation: Position of its recomputation; -1 without one.
        temporary: Bytes that its recomputation takes while it runs, beside its outputs.
        random: Whether it draws random numbers.
        collective: Whether several ranks may have to run it together.
        objection: Why it cannot be saved; "" if it can.
        storages: Those of its outputs.
    """

    name: str
    seconds: float = 0.0
    recomputation: int = -1
    temporary: int = 0
    random: bool = False
    collective: bool = False
    objection: str = ""
    storages: tuple[SavedStorage, ...] = ()


@dataclass(frozen=True)
class RecordedBlock:
    """A block with the ops of its forward, in order.

    Attributes:
        path: Path of the block in the model.
        ops: Ops of its forward.
        parameter_bytes: Bytes of its parameters, those that require gradients.
        forward: First and last position of its forward.
        recomputation: First and last position of its recomputation.
        kept: Storages that its backward reads, which stay if it is not checkpointed.
        frame_end: Position at which what its checkpoint holds itself is freed.
        bias_bytes: Most bytes of a bias's gradient. Without a checkpoint, autograd makes it before
            it frees what the same node has read, and with one after.
    """

    path: str
    ops: tuple[BlockOp, ...]
    parameter_bytes: int
    forward: tuple[int, int]
    recomputation: tuple[int, int]
    kept: tuple[SavedStorage, ...]
    frame_end: int
    bias_bytes: int

    @property
    def seconds(self) -> float:
        """Time of its recomputation."""
        return sum(op.seconds for op in self.ops)


@dataclass(frozen=True)
class CheckpointRecording:
    """A step with every block checkpointed and nothing saved.

    Attributes:
        blocks: Blocks in the order in which they run.
        levels: For each position the most bytes beyond those that were there before the step.
        seconds: Time of all ops, those that run again included.
        bytes_before: Bytes of parameters, buffers and inputs.
        frame_bytes: What each checkpoint holds itself: the random state of its forward.
    """

    blocks: tuple[RecordedBlock, ...]
    levels: Sequence[int]
    seconds: float
    bytes_before: int
    frame_bytes: int
