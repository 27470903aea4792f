"""The sequence artifact and its words."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest

from tightfit.schemas import store
from tightfit.schemas.sequence import (
    SEQUENCE,
    ChainOperation,
    StorageMove,
    StoredItem,
    move_operation,
    read_sequence,
    write_sequence,
)
from tightfit.util.errors import ArtifactError

ACTIONS = [
    ChainOperation("F_ck", 1),
    ChainOperation("F_none", 2),
    ChainOperation("F", 3, 2),
    ChainOperation("F_all", 4),
    ChainOperation("loss", 5),
    ChainOperation("B", 4),
    ChainOperation("F", 3, 2, 1),
]


def test_what_is_written_is_read(tmp_path: Path) -> None:
    write_sequence(tmp_path / "sequence.arrow", ACTIONS)
    assert read_sequence(tmp_path / "sequence.arrow") == ACTIONS


def test_operations_read_aloud() -> None:
    words = ["F_ck 1", "F_none 2", "F 3 option 2", "F_all 4", "loss", "B 4"]
    words.append("F 3 option 2 of branch 1")
    assert [str(action) for action in ACTIONS] == words


@pytest.mark.parametrize(
    ("row", "words"),
    [
        (
            {"step": 1, "action": "B", "block": 1, "option": -1, "branch": 0},
            "step 0 is out of place",
        ),
        (
            {"step": 0, "action": "jump", "block": 1, "option": -1, "branch": 0},
            "unknown action 'jump'",
        ),
        (
            {"step": 0, "action": "B", "block": 0, "option": -1, "branch": 0},
            "no position or option",
        ),
        ({"step": 0, "action": "B", "block": 1, "option": 2, "branch": 0}, "no position or option"),
        (
            {"step": 0, "action": "F", "block": 1, "option": -1, "branch": 0},
            "no position or option",
        ),
        ({"step": 0, "action": "B", "block": 1, "option": -1, "branch": -1}, "names no branch"),
        ({"step": 0, "action": "loss", "block": 1, "option": -1, "branch": 1}, "names no branch"),
    ],
)
def test_a_wrong_step_is_named(tmp_path: Path, row: dict, words: str) -> None:
    store.write(tmp_path / "sequence.arrow", SEQUENCE, [row])
    with pytest.raises(ArtifactError, match=words):
        read_sequence(tmp_path / "sequence.arrow")


@pytest.mark.parametrize("move", get_args(StorageMove))
@pytest.mark.parametrize("store", [(False, 0), (False, 2), (True, 2)])
def test_what_moves_says_what_it_moves(move: StorageMove, store: StoredItem) -> None:
    made = move_operation(move, store)
    assert (made.move, made.store, made.transfers) == (move, store, move != "free")
    assert ChainOperation("F_all", 1).move is None and not ChainOperation("loss", 3).transfers
