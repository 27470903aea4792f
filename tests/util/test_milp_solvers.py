"""Where CBC does not come to its end, a sentence says so."""

from __future__ import annotations

from pathlib import Path

import pulp
import pytest

from tightfit.util.errors import TightfitError
from tightfit.util.milp_solvers import solve_with_cbc


def small_program() -> pulp.LpProblem:
    program = pulp.LpProblem("program", pulp.LpMinimize)
    column = program.add_variable("c0", 0, 1, pulp.LpInteger)
    program += pulp.LpAffineExpression([(column, 1.0)])
    program += pulp.LpConstraint(pulp.LpAffineExpression([(column, 1.0)]), 1, "r0", 1.0)
    return program


@pytest.mark.parametrize("ends", ["kill -KILL $$", "exit 0"])
def test_a_solver_that_is_killed_or_writes_nothing(
    ends: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "cbc"
    other.write_text(f"#!/bin/sh\n{ends}\n")
    other.chmod(0o755)
    monkeypatch.setattr(pulp.PULP_CBC_CMD, "pulp_cbc_path", str(other))
    with pytest.raises(TightfitError, match="CBC did not come to its end"):
        solve_with_cbc(small_program(), 0.0, 10, 10.0)


def test_a_solver_whose_files_have_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pulp.LpProblem, "writeMPS", full)
    with pytest.raises(TightfitError, match=r"its end \(No space left on device\)"):
        solve_with_cbc(small_program(), 0.0, 10, 10.0)


def test_a_solver_that_ends() -> None:
    run = solve_with_cbc(small_program(), 0.0, 10, 10.0)
    assert run.optimal and run.found and not run.infeasible
    assert run.bound <= 1.0
