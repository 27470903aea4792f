"""Which engines are asked."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tightfit.stages.combine import milp
from tightfit.util.solver_engines import ENGINES, SolverEngine


@contextmanager
def engines_asked() -> Iterator[set[SolverEngine]]:
    """The engines that run programs of whole steps or of allocators within it."""
    asked: set[SolverEngine] = set()

    def watched(engine: SolverEngine) -> Any:
        run = milp.SOLVER_BACKENDS[engine]

        def running(*given: Any) -> Any:
            asked.add(engine)
            return run(*given)

        return running

    with pytest.MonkeyPatch.context() as patch:
        for engine in ENGINES:
            patch.setitem(milp.SOLVER_BACKENDS, engine, watched(engine))
        yield asked
