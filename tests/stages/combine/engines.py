"""Which engines are asked."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tightfit.schemas.engines import ENGINES, Engine
from tightfit.stages.combine.moment import solver


@contextmanager
def engines_asked() -> Iterator[set[Engine]]:
    """The engines that run programs of whole steps or of allocators within it."""
    asked: set[Engine] = set()

    def watched(engine: Engine) -> Any:
        run = solver.ENGINES[engine]

        def running(*given: Any) -> Any:
            asked.add(engine)
            return run(*given)

        return running

    with pytest.MonkeyPatch.context() as patch:
        for engine in ENGINES:
            patch.setitem(solver.ENGINES, engine, watched(engine))
        yield asked
