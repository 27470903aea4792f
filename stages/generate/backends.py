"""The backends by name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from tightfit.schemas.graph.training_graph import Graph
from tightfit.schemas.optimizer_plan import OptimizerPlan
from tightfit.schemas.schedule import ScheduleStep
from tightfit.stages.generate.step_program import SourceProgram
from tightfit.stages.generate.step_writer import write_program
from tightfit.util.command_line import find_registered


class ProgramBackend(Protocol):
    """A way to write a schedule as a program."""

    def __call__(
        self,
        graph: Graph,
        steps: Sequence[ScheduleStep],
        title: str,
        updates: OptimizerPlan | None = None,
    ) -> SourceProgram:
        """The program of a schedule that the simulator accepts; `title` heads its text, `updates`
        say which parameters live in an offload target."""


ATEN = "aten"
BACKENDS: dict[str, ProgramBackend] = {ATEN: write_program}
"""A new one is a line here."""


def find_backend(name: str) -> ProgramBackend:
    """The backend of that name; raises ConfigError when there is none."""
    return find_registered("backend", name, BACKENDS)
