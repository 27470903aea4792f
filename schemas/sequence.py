"""`tightfit.sequence/4`: what a strategy does with the positions of a chain, read aloud.

    F_ck 3        forward of position 3, its input stays
    F_none 4      forward of position 4, its input goes
    F_all 5       forward of position 5, its input and all that its backward reads stay
    F 5 option 2  the same, keeping what option 2 keeps
    loss          forward and backward of the last position
    B 5           backward of position 5
    free 3        the output of position 3 goes
    free_all 5    what a forward of position 5 kept for its backward goes
    offload 3     the output of position 3 begins to leave for the host; `free` waits until it has
    prefetch 3    memory is taken for it, and it begins to come back; what reads it waits
    offload_all 5, prefetch_all 5    the same with what a forward of position 5 kept

Position 0 is the chain's input, which can leave and come back.

Of a join each operation but the loss names its branch: "B 5 of branch 2". Of a pipeline the branch
is a stage, and the loss a position as others are.

The operations are those of S Table 2.1 (Shilova's thesis) with the options of Z 2.5 (Zhao's), and
those that only free, which S lacks. `offload` and `prefetch` are O and P of S ch. 3 and 4.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import pyarrow as pa

from tightfit.schemas import store
from tightfit.schemas.arrow_fields import integer_field, text_field
from tightfit.util.errors import ArtifactError

OperationKind = Literal[
    "F_all", "F_ck", "F_none", "F", "loss", "B", "free", "free_all",
    "offload", "offload_all", "prefetch", "prefetch_all",
]  # fmt: skip

StorageMove = Literal["free", "offload", "prefetch"]
"""What an operation that runs nothing does with what is stored."""
StoredItem = tuple[bool, int]
"""What is stored: whether it is all that a forward kept, and the position (0: the input)."""
STORAGE_MOVES: dict[OperationKind, tuple[StorageMove, bool]] = {
    "free": ("free", False),
    "free_all": ("free", True),
    "offload": ("offload", False),
    "offload_all": ("offload", True),
    "prefetch": ("prefetch", False),
    "prefetch_all": ("prefetch", True),
}
"""The operations that run nothing: what each does, and whether with all that a forward kept."""

NO_OPTION = -1
NO_BRANCH = 0


@dataclass(frozen=True)
class ChainOperation:
    """One operation on the position `block` (1..L+1, 0 for the input); `option` is a number where
    it is an "F".

    `branch` (1, 2, ..) is that of a join, NO_BRANCH of a chain and of the loss.
    """

    action: OperationKind
    block: int
    option: int = NO_OPTION
    branch: int = NO_BRANCH

    @property
    def move(self) -> StorageMove | None:
        """What it does with what is stored, None where it runs something."""
        return STORAGE_MOVES[self.action][0] if self.action in STORAGE_MOVES else None

    @property
    def transfers(self) -> bool:
        """Whether it takes a link to the host; one device and no branch has one."""
        return self.move in ("offload", "prefetch")

    @property
    def store(self) -> StoredItem:
        """What it moves: the output of its position, or all that a forward kept."""
        return STORAGE_MOVES[self.action][1], self.block

    def __str__(self) -> str:
        if self.action == "loss":
            return "loss"
        option = "" if self.option == NO_OPTION else f" option {self.option}"
        branch = "" if self.branch == NO_BRANCH else f" of branch {self.branch}"
        return f"{self.action} {self.block}{option}{branch}"


def move_operation(move: StorageMove, what: StoredItem) -> ChainOperation:
    """The operation that moves what is stored."""
    kept, position = what
    [action] = [name for name, said in STORAGE_MOVES.items() if said == (move, kept)]
    return ChainOperation(action, position)


def iterate_with_next(
    operations: Sequence[ChainOperation],
) -> Iterator[tuple[int, ChainOperation, ChainOperation | None]]:
    """The operations of a sequence with their places, each with the one that follows it."""
    following = (*operations[1:], None)
    for place, (own, after) in enumerate(zip(operations, following, strict=True)):
        yield place, own, after


OPERATION_FIELDS = (
    text_field("action"),
    integer_field("block"),
    integer_field("option"),
    integer_field("branch"),
)
"""Arrow fields of an operation, for artifacts that hold some."""

SEQUENCE = store.ArtifactType(
    "tightfit.sequence",
    4,
    pa.schema([integer_field("step"), *OPERATION_FIELDS]),
)


def write_sequence(
    path: Path | str, actions: Iterable[ChainOperation], chain_digest: str = ""
) -> str:
    """Writes a sequence and returns its digest; `chain_digest` names the chain it is for."""
    rows = [{"step": step, **asdict(action)} for step, action in enumerate(actions)]
    return store.write(path, SEQUENCE, rows, {"chain": chain_digest})


def read_sequence(path: Path | str) -> list[ChainOperation]:
    """Reads a sequence; raises ArtifactError when an action is unknown or a step out of place."""
    actions = []
    for expected, row in enumerate(store.read(path, SEQUENCE).rows):
        if row.pop("step") != expected:
            raise ArtifactError(f"{path}: step {expected} is out of place")
        actions.append(operation_from_row(row, f"{path}: step {expected}"))
    return actions


def operation_from_row(row: Mapping[str, Any], what: str) -> ChainOperation:
    """The operation of a row; raises ArtifactError, naming `what`, where it is none."""
    found = ChainOperation(**row)
    if found.action not in get_args(OperationKind):
        raise ArtifactError(f"{what} has the unknown action {found.action!r}")
    least = 0 if found.move is not None and not found.store[0] else 1
    if found.block < least or (found.action == "F") != (found.option >= 0):
        raise ArtifactError(f"{what} ({found}) names no position or option")
    alone = found.action == "loss" or found.transfers
    if found.branch < NO_BRANCH or (alone and found.branch != NO_BRANCH):
        raise ArtifactError(f"{what} ({found}) names no branch")
    return found
