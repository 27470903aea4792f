"""The engines that solve the integer programs of blocks, by name."""

from __future__ import annotations

from typing import Literal, get_args

Engine = Literal["highs", "cbc"]
Solver = Literal[Engine, "none"]
"""An engine, or "none" where no integer program is solved."""
ENGINES: tuple[Engine, ...] = get_args(Engine)
SOLVERS: tuple[Solver, ...] = get_args(Solver)
