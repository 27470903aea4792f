"""`combine` tells how far it is, now and then."""

from __future__ import annotations

import pytest

from stages.combine import cli


def test_lines_come_now_and_then(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = iter([0.0, 3.0, 6.0, 6.0, 9.0, 12.0, 12.0])
    monkeypatch.setattr(cli.time, "monotonic", lambda: next(clock))
    telling = cli._Telling("tower: rockmate")
    for done in (1, 2, 3, 4):
        telling(done, 9)
    assert capsys.readouterr().out.splitlines() == [
        "tower: rockmate at 2 of 9 budgets",
        "tower: rockmate at 4 of 9 budgets",
    ]
