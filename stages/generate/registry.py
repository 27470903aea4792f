"""The backends by name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from schemas.graph import Graph
from schemas.registry import entry
from schemas.schedule import Step
from schemas.updates import Updates
from stages.generate.program import write_program
from stages.generate.programs import Program


class Backend(Protocol):
    """A way to write a schedule as a program."""

    def __call__(
        self, graph: Graph, steps: Sequence[Step], title: str, updates: Updates | None = None
    ) -> Program:
        """The program of a schedule that the referee accepts; `title` heads its text, `updates` say
        which parameters live in another memory."""


ATEN = "aten"
BACKENDS: dict[str, Backend] = {ATEN: write_program}
"""A new one is a line here."""


def backend(name: str) -> Backend:
    """The backend of that name; raises ConfigError when there is none."""
    return entry("backend", name, BACKENDS)
