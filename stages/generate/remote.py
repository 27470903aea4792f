"""What a program does with parameters that live in another memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from schemas.actions import Linked, Offload, Prefetch, Wait
from schemas.graph import Graph
from schemas.updates import Updates
from stages.generate.calls import Statement
from stages.generate.lines import INDENT, line
from stages.generate.transfers import SENDING

HOME, VISIT = "home", "parameters"
"""The names, in a program, of where such parameters live, and of its visit there."""
NAMES = (HOME, VISIT, "Visit")


@dataclass(frozen=True)
class Remote:
    """The parameters `values` that live in another memory, by their numbers there, of which those
    `there` are on the device when a step begins; `numbers` are by storage."""

    values: Sequence[int]
    there: Sequence[int]
    numbers: Mapping[int, int]

    @classmethod
    def of(cls, graph: Graph, updates: Updates | None) -> Remote:
        """Those of an optimiser."""
        values = sorted(updates.remote) if updates is not None else []
        there = [n for n, value in enumerate(values) if updates and value in updates.there]
        storages = [graph.values[value].storage for value in values]
        return cls(values, there, {storage: number for number, storage in enumerate(storages)})

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
        return [line(f"{VISIT} = Visit({HOME})")] if self else []

    def begins(self, names: Sequence[str]) -> Iterator[tuple[Statement, int]]:
        """The statements that name what is on the device when a step begins, each with its
        parameter."""
        for number in self.there:
            value = self.values[number]
            yield Statement(names[value], f"{VISIT}.there", [str(number)]), value

    def moves(self, action: Linked, name: str, storage: int) -> Statement | None:
        """The statement of a transfer, None for one of another storage."""
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

    def frees(self, storage: int) -> str:
        """The line that frees the bytes of a parameter."""
        return f"{VISIT}.free({self.numbers[storage]})"

    def goes_on(self) -> list[str]:
        """The line that the backward begins with."""
        return [line(f"{VISIT}.go_on()")] if self else []

    def ends(self) -> list[str]:
        """The lines behind the last gradients: what is left to do has been done by then."""
        return [line(f"{VISIT}.leave()"), line("gradients = []"), line("yield gradients")]
