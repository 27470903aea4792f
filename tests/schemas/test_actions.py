from __future__ import annotations

from dataclasses import dataclass

import pytest

from tightfit.schemas.actions import ACTION_NAMES, Compute, action_from_row, action_to_row
from tightfit.util.errors import ArtifactError


def test_an_action_is_its_row() -> None:
    action = Compute(3, in_place=1)
    assert action_from_row(action_to_row(action), "step 0") == action


def test_an_action_that_says_what_no_column_holds_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    @dataclass(frozen=True)
    class Transfer:
        value: int
        to: int

    monkeypatch.setitem(ACTION_NAMES, Transfer, "transfer")  # type: ignore[misc]
    with pytest.raises(ArtifactError, match="a transfer says 'to', which no column holds"):
        action_to_row(Transfer(3, 7))  # type: ignore[arg-type]
