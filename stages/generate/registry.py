"""The backends by name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from schemas.graph import Graph
from schemas.registry import entry
from schemas.schedule import Step
from stages.generate.program import Program, write_program


class Backend(Protocol):
    """A way to write a schedule as a program."""

    def __call__(self, graph: Graph, steps: Sequence[Step], title: str) -> Program:
        """The program of a schedule that the referee accepts; `title` heads its text."""


ATEN = "aten"
BACKENDS: dict[str, Backend] = {ATEN: write_program}
"""A new one is a line here."""


def backend(name: str) -> Backend:
    """The backend of that name; raises ConfigError when there is none."""
    return entry("backend", name, BACKENDS)
