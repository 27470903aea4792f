"""The local search that improves a sequence of executions."""

from tightfit.schemas.compiled import forget_stale

forget_stale(__file__)
