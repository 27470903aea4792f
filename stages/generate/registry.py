"""The backends by name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from tightfit.schemas.graph import Graph
from tightfit.schemas.registry import entry
from tightfit.schemas.schedule import Step
from tightfit.schemas.updates import Updates
from tightfit.stages.generate.program import write_program
from tightfit.stages.generate.programs import Program


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
