"""What a further backward over one forward rests on: whether the forward can run again, and which
outputs have a backward of their own."""

from __future__ import annotations

from collections.abc import Sequence

from tightfit.schemas.graph.training_graph import LOSS_TARGET, NO_VALUE, Graph
from tightfit.stages.generate.graph_guards import parse_guards
from tightfit.stages.generate.step_program import SourceProgram


def written_values(graph: Graph) -> list[int]:
    """The buffers and frozen parameters that the step writes."""
    return sorted({value for op in graph.ops for value in op.writes})


def is_repeatable_forward(graph: Graph) -> bool:
    """Whether a step draws no random numbers, writes nothing in its backward, and computes the same
    when it has written what it writes."""
    if parse_guards(graph).get("backward_writes"):
        return False
    shown = {*graph.output_values(), *(gradient.gradient for gradient in graph.gradients)}
    needed = set(shown)
    for op in reversed(graph.ops):
        if op.random:
            return False
        if op.target == LOSS_TARGET or (not op.writes and needed.intersection(op.outputs)):
            if op.target != LOSS_TARGET and not op.repeatable:
                return False
            needed.update(op.inputs)
    return True


def output_components(graph: Graph, program: SourceProgram) -> tuple[int, ...]:
    """A number for each output that could receive a gradient, which those share whose backwards
    have an operator in common."""
    loss = next(op for op in graph.ops if op.target == LOSS_TARGET)
    group = {tangent: tangent for tangent in loss.outputs}
    sources: dict[int, int] = dict(group)

    def root(tangent: int) -> int:
        while group[tangent] != tangent:
            tangent = group[tangent]
        return tangent

    for op in graph.ops:
        arriving = {root(sources[value]) for value in op.inputs if value in sources}
        if op.phase != "backward" or not arriving:
            continue
        first = min(arriving)
        group.update(dict.fromkeys(arriving, first))
        sources.update(dict.fromkeys(set(op.outputs) - {NO_VALUE}, first))
    numbers = _number_roots([root(tangent) for tangent in program.tangents])
    alone = range(len(numbers), len(numbers) + len(program.unused))
    return (*numbers, *alone)


def _number_roots(roots: Sequence[int]) -> list[int]:
    known: dict[int, int] = {}
    return [known.setdefault(one, len(known)) for one in roots]
