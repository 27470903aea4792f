"""What a program does with parameters that live in another memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tightfit.schemas.actions import (
    Accumulate,
    FreeCopy,
    Linked,
    Offload,
    OptimiseAway,
    Prefetch,
    Wait,
)
from tightfit.schemas.contributions import contributions
from tightfit.schemas.errors import ScheduleError
from tightfit.schemas.graph import Graph
from tightfit.schemas.schedule import Step
from tightfit.schemas.updates import Updates
from tightfit.stages.generate.calls import Statement
from tightfit.stages.generate.lines import INDENT, line
from tightfit.stages.generate.transfers import SENDING

HOME, VISIT = "home", "parameters"
"""The names, in a program, of where such parameters live, and of its visit there."""
NAMES = (HOME, VISIT, "Visit")
OTHER_MEMORY = (Offload, FreeCopy, OptimiseAway, Accumulate)
"""The actions whose bytes are those of the other memory."""


@dataclass(frozen=True)
class Remote:
    """The parameters `values` that live in another memory, by their numbers there, of which those
    `there` are on the device when a step begins; `numbers` are by storage, and `gradients` by the
    storage of the gradient for those that are updated there, or added up where the step `adds`."""

    values: Sequence[int]
    there: Sequence[int]
    numbers: Mapping[int, int]
    gradients: Mapping[int, int]
    adds: bool = False

    @classmethod
    def of(cls, graph: Graph, updates: Updates | None, steps: Sequence[Step] = ()) -> Remote:
        """Those of an optimiser."""
        values = sorted(updates.remote) if updates is not None else []
        there = [n for n, value in enumerate(values) if updates and value in updates.there]
        storages = [graph.values[value].storage for value in values]
        numbers = {storage: number for number, storage in enumerate(storages)}
        parts, gradients = contributions(graph), {}
        for owner in away_of(steps):
            own = graph.values[owner].storage
            if own in numbers:
                gradients[graph.values[parts[owner][0]].storage] = numbers[own]
        return cls(values, there, numbers, gradients, updates is not None and updates.adds)

    def __bool__(self) -> bool:
        return bool(self.values)

    def imports(self) -> list[str]:
        """The lines that a program with such parameters has in its head."""
        return ["from .visit import Visit"] if self else []

    def takes(self, sends: bool) -> list[str]:
        """The line of the first thing that a program takes, where it has such parameters, or else
        `sends`."""
        if self:
            return [f"{INDENT}{HOME},"]
        return [f"{INDENT}{SENDING}: Sending,"] if sends else []

    def copies(self) -> str:
        """What tells transfers where copies of storages that are none of theirs go."""
        return f"memory={VISIT}.copies" if self else SENDING

    def opens(self) -> list[str]:
        """The line that a program with such parameters begins with."""
        adding = ", adding=True" if self.adds else ""
        return [line(f"{VISIT} = Visit({HOME}{adding})")] if self else []

    def begins(self, names: Sequence[str]) -> Iterator[tuple[Statement, int]]:
        """The statements that name what is on the device when a step begins, each with its
        parameter."""
        for number in self.there:
            value = self.values[number]
            yield Statement(names[value], f"{VISIT}.there", [str(number)]), value

    def moves(self, action: Linked, name: str, storage: int, place: int) -> Statement | None:
        """The statement of a transfer, None for one of another storage; a gradient goes to a
        `place` among what the step sends."""
        if storage in self.gradients:
            return self._gradient(action, str(self.gradients[storage]), place)
        if storage not in self.numbers:
            return None
        number = str(self.numbers[storage])
        match action:
            case Offload():
                return Statement("", f"{VISIT}.offload", [number])
            case Prefetch():
                return Statement(name, f"{VISIT}.prefetch", [number])
            case Wait():
                return Statement("", f"{VISIT}.wait", [number])
        return None

    def _gradient(self, action: Linked, number: str, place: int) -> Statement | None:
        match action:
            case Offload():
                return Statement("", f"{VISIT}.send_gradient", [number, str(place)])
            case Wait():
                return Statement("", f"{VISIT}.wait_for_gradient", [number])
        return None

    def updates(self, action: OptimiseAway | Accumulate, storage: int) -> Statement:
        """The statement that updates a parameter where it lives, or adds its gradient up there;
        `storage` is that of the gradient."""
        if storage not in self.gradients:
            raise ScheduleError("no program updates parameters of the device in another memory")
        name = "accumulate" if isinstance(action, Accumulate) else "optimise"
        return Statement("", f"{VISIT}.{name}", [str(self.gradients[storage])])

    def frees(self, storage: int) -> str:
        """The line that frees the bytes of a parameter or of its gradient, "" for others."""
        if storage in self.gradients:
            return f"{VISIT}.free_gradient({self.gradients[storage]})"
        return f"{VISIT}.free({self.numbers[storage]})" if storage in self.numbers else ""

    def goes_on(self) -> list[str]:
        """The line that the backward begins with."""
        return [line(f"{VISIT}.go_on()")] if self else []

    def ends(self) -> list[str]:
        """The lines behind the last gradients: what is left to do has been done by then."""
        return [line(f"{VISIT}.leave()"), line("gradients = []"), line("yield gradients")]


def away_of(steps: Sequence[Step]) -> list[int]:
    """The parameters that a schedule updates in the other memory, or whose gradients it adds up
    there."""
    actions = [step.action for step in steps]
    return [action.value for action in actions if isinstance(action, OptimiseAway | Accumulate)]
