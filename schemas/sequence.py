"""`tightfit.sequence/1`: what a strategy does with the positions of a chain, read aloud.

    F_ck 3        forward of position 3, its input stays
    F_none 4      forward of position 4, its input goes
    F_all 5       forward of position 5, its input and all that its backward reads stay
    F 5 option 2  the same, keeping what option 2 keeps
    loss          forward and backward of the last position
    B 5           backward of position 5

These are the operations of S Table 2.1 (Shilova's thesis) with the options of Z 2.5 (Zhao's).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal, cast, get_args

import pyarrow as pa

from schemas import store
from schemas.arrow import integer, text
from schemas.errors import ArtifactError

Kind = Literal["F_all", "F_ck", "F_none", "F", "loss", "B"]

NO_OPTION = -1


@dataclass(frozen=True)
class Action:
    """One action on the position `block` (1..L+1); `option` is a number where the kind is "F"."""

    action: Kind
    block: int
    option: int = NO_OPTION

    def __str__(self) -> str:
        if self.action == "loss":
            return "loss"
        option = "" if self.option == NO_OPTION else f" option {self.option}"
        return f"{self.action} {self.block}{option}"


SEQUENCE = store.ArtifactType(
    "tightfit.sequence",
    1,
    pa.schema([integer("step"), text("action"), integer("block"), integer("option")]),
)


def parse_action(words: str, last: int) -> Action:
    """The action that was written as `words`, in a chain whose loss is position `last`.

    Raises ArtifactError when it is none.
    """
    if words == "loss":
        return Action("loss", last)
    match = re.fullmatch(r"(F_all|F_ck|F_none|F|B) (\d+)(?: option (\d+))?", words)
    if match is None or (match[1] == "F") != (match[3] is not None):
        raise ArtifactError(f"{words!r} is no action of a sequence")
    option = NO_OPTION if match[3] is None else int(match[3])
    return Action(cast(Kind, match[1]), int(match[2]), option)


def write_sequence(path: Path | str, actions: Iterable[Action], chain_digest: str = "") -> str:
    """Writes a sequence and returns its digest; `chain_digest` names the chain it is for."""
    rows = [{"step": step, **asdict(action)} for step, action in enumerate(actions)]
    return store.write(path, SEQUENCE, rows, {"chain": chain_digest})


def read_sequence(path: Path | str) -> list[Action]:
    """Reads a sequence; raises ArtifactError when an action is unknown or a step out of place."""
    actions = []
    for expected, row in enumerate(store.read(path, SEQUENCE).rows):
        if row.pop("step") != expected:
            raise ArtifactError(f"{path}: step {expected} is out of place")
        action = Action(**row)
        if action.action not in get_args(Kind):
            raise ArtifactError(f"{path}: step {expected} has the unknown action {row['action']!r}")
        if action.block < 1 or (action.action == "F") != (action.option >= 0):
            raise ArtifactError(f"{path}: step {expected} ({action}) names no position or option")
        actions.append(action)
    return actions
