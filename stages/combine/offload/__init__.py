"""Chains with a link to the host: what leaves and comes back, the planners, their referee."""

from tightfit.schemas.compiled import forget_stale

forget_stale(__file__)
