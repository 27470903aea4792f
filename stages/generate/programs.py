"""What is known of a program beside its text."""

from __future__ import annotations

from dataclasses import dataclass

from tightfit.schemas.graph import NONE, Graph


@dataclass(frozen=True)
class Program:
    """The text of a step and what its caller must know.

    `arguments` are the values it takes, in order. First it yields `differentiable`, `unused` and
    `plain`: the outputs that receive gradients, those that could but do not in the traced loss, and
    the others. Then it is sent `tangents`, one for each differentiable, and yields at each further
    stop gradients: those of the values in one of `slices`, a value repeated where its gradient
    arrives in parts; `handed` are these gradients. `watched` are, for each slice, the fixed values
    and outputs that it reads, `overwritten` the tangents that it writes over or sends. `taken` says
    of each tangent how it is taken where it arrives in other strides. `remote` are the parameters
    that live in another memory, by their numbers there: where there are some, the program takes
    their home first, and what it does behind the last gradients is the last slice.
    """

    text: str
    arguments: list[int]
    differentiable: list[int]
    unused: list[int]
    plain: list[int]
    tangents: list[int]
    slices: list[list[int]]
    handed: list[list[int]]
    watched: list[list[int]]
    overwritten: set[int]
    taken: dict[int, str]
    remote: list[int]


def arguments_of(graph: Graph) -> list[int]:
    """The values that a program takes: all inputs, and the other fixed values that the step reads
    or its caller names."""
    named = {value for op in graph.ops for value in op.inputs}
    named |= {output.value for output in graph.outputs}
    named |= {value for value in graph.inputs if value != NONE}
    named |= {gradient.value for gradient in graph.gradients}
    return [
        value.id
        for kind in ("parameter", "buffer", "constant", "input")
        for value in graph.values
        if value.kind == kind and value.id in named
    ]
