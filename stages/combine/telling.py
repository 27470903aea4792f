"""How far a search is; see `schemas.telling`."""

from schemas.telling import Report, Tally

__all__ = ["Report", "Tally"]
