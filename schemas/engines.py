"""The engines that solve the integer programs of blocks and of whole steps, by name."""

from __future__ import annotations

from typing import Literal, get_args

Engine = Literal["highs", "cbc"]
Solver = Literal[Engine, "none"]
"""An engine, or "none" where no integer program of a block is solved."""
HIGHS: Engine = "highs"
ENGINES: tuple[Engine, ...] = get_args(Engine)
TITLES: dict[Engine, str] = {"highs": "HiGHS", "cbc": "CBC"}
"""As plans name them."""
SOLVERS: tuple[Solver, ...] = get_args(Solver)


def engine_of_steps(solver: Solver) -> Engine:
    """The engine of the integer programs of whole steps and of their bounds, which are solved
    whether or not those of blocks are."""
    return HIGHS if solver == "none" else solver
