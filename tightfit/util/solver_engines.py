"""The engines that solve the integer programs of blocks and of whole steps, by name."""

from __future__ import annotations

from typing import Literal, get_args

SolverEngine = Literal["highs", "cbc"]
BlockSolver = Literal[SolverEngine, "none"]
"""An engine, or "none" where no integer program of a block is solved."""
HIGHS_ENGINE: SolverEngine = "highs"
ENGINES: tuple[SolverEngine, ...] = get_args(SolverEngine)
ENGINE_TITLES: dict[SolverEngine, str] = {"highs": "HiGHS", "cbc": "CBC"}
"""As plans name them."""
BLOCK_SOLVERS: tuple[BlockSolver, ...] = get_args(BlockSolver)


def step_engine(solver: BlockSolver) -> SolverEngine:
    """The engine of the integer programs of whole steps and of their bounds, which are solved
    whether or not those of blocks are."""
    return HIGHS_ENGINE if solver == "none" else solver
