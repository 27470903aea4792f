"""The sequence artifact and its words."""

from __future__ import annotations

from pathlib import Path

import pytest

from schemas import store
from schemas.errors import ArtifactError
from schemas.sequence import (
    SEQUENCE,
    Action,
    parse_action,
    read_sequence,
    write_sequence,
)

ACTIONS = [
    Action("F_ck", 1),
    Action("F_none", 2),
    Action("F", 3, 2),
    Action("F_all", 4),
    Action("loss", 5),
    Action("B", 4),
]


def test_what_is_written_is_read(tmp_path: Path) -> None:
    write_sequence(tmp_path / "sequence.arrow", ACTIONS)
    assert read_sequence(tmp_path / "sequence.arrow") == ACTIONS


def test_actions_read_aloud_and_back() -> None:
    words = ["F_ck 1", "F_none 2", "F 3 option 2", "F_all 4", "loss", "B 4"]
    assert [str(action) for action in ACTIONS] == words
    assert [parse_action(text, 5) for text in words] == ACTIONS


@pytest.mark.parametrize(
    "words", ["", "F 3", "B 3 option 1", "F_all", "F_ck -1", "jump 3", "loss 5"]
)
def test_other_words_are_refused(words: str) -> None:
    with pytest.raises(ArtifactError, match="is no action of a sequence"):
        parse_action(words, 5)


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"step": 1, "action": "B", "block": 1, "option": -1}, "step 0 is out of place"),
        ({"step": 0, "action": "jump", "block": 1, "option": -1}, "unknown action 'jump'"),
        ({"step": 0, "action": "B", "block": 0, "option": -1}, "no position or option"),
        ({"step": 0, "action": "B", "block": 1, "option": 2}, "no position or option"),
        ({"step": 0, "action": "F", "block": 1, "option": -1}, "no position or option"),
    ],
)
def test_a_wrong_step_is_named(tmp_path: Path, row: dict, words: str) -> None:
    store.write(tmp_path / "sequence.arrow", SEQUENCE, [row])
    with pytest.raises(ArtifactError, match=words):
        read_sequence(tmp_path / "sequence.arrow")
