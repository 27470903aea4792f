"""What is known of a program beside its text."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from tightfit.schemas.actions import ComputeLoss, Offload, PassGradient
from tightfit.schemas.graph.fused_groups import is_fused_group, read_group_body
from tightfit.schemas.graph.ownership import caller_owned_storages, gradient_storages
from tightfit.schemas.graph.training_graph import BASELINE_KINDS, LOSS_TARGET, NO_VALUE, Graph, Op
from tightfit.stages.simulate.effects import Effect, last_uses
from tightfit.util.errors import ScheduleError


@dataclass(frozen=True)
class SourceProgram:
    """The text of a step and what its caller must know.

    `arguments` are the values it takes, in order. First it yields `differentiable`, `unused` and
    `plain`: the outputs that receive gradients, those that could but do not in the traced loss, and
    the others. Then it is sent `tangents`, one for each differentiable, and yields at each further
    stop gradients: those of the values in one of `slices`, a value repeated where its gradient
    arrives in parts; `handed` are these gradients. `watched` are, for each slice, the fixed values
    and outputs that it reads, `overwritten` the tangents that it writes over or sends. `taken` says
    of each tangent how it is taken where it arrives in other strides. `remote` are the parameters
    that live in an offload target, by their numbers there: where there are some, the program takes
    their store first, and what it does behind the last gradients is the last slice.
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


def program_arguments(graph: Graph) -> list[int]:
    """The values that a program takes: all inputs, and the other fixed values that the step reads
    or its caller names."""
    named = {value for op in graph.ops for value in op.inputs}
    named |= {output.value for output in graph.outputs}
    named |= {value for value in graph.inputs if value != NO_VALUE}
    named |= {gradient.value for gradient in graph.gradients}
    return [
        value.id
        for kind in ("parameter", "buffer", "constant", "input")
        for value in graph.values
        if value.kind == kind and value.id in named
    ]


@dataclass(frozen=True)
class ValueLifetimes:
    """What a schedule reads when.

    `ends` are, by step, the values that nothing names after it although their storage is not
    freed there: those of inputs, outputs, tangents and gradients, which others hold. `fixed` are
    the values that are there before the step, `unread` those inputs that nothing reads. `late` are,
    by step after the loss, the storages that it reads.
    """

    ends: dict[int, list[int]]
    fixed: set[int]
    unread: list[int]
    late: dict[int, list[int]]


def value_lifetimes(
    graph: Graph,
    walked: Sequence[Effect],
    remote: Collection[int] = (),
    away: Collection[int] = (),
) -> ValueLifetimes:
    """Finds the last reader of each value that others hold; the parameters in the storages `remote`
    come and go as the schedule says, and gradients in those `away` leave once they are whole.

    Raises ScheduleError when a gradient is read after it was handed over.
    """
    fixed = {value.id for value in graph.values if value.kind in BASELINE_KINDS}
    outputs = graph.output_values()
    storage = [value.storage for value in graph.values]
    held = graph.baseline_storages() | gradient_storages(graph) | caller_owned_storages(graph)
    held.difference_update(remote)
    late: dict[int, list[int]] = {}
    handed: set[int] = set()
    after_loss = False
    for effect in walked:
        loss = isinstance(effect.step.action, ComputeLoss)
        handing = isinstance(effect.step.action, PassGradient)
        read = outputs if loss else effect.reads
        leaves = isinstance(effect.step.action, Offload)
        for value in read:
            sent = leaves and storage[value] in away
            if storage[value] in handed and not handing and not sent:
                raise ScheduleError(
                    f"step {effect.position} of the schedule: "
                    f"value {value} was handed over as a gradient"
                )
        if handing:
            handed.update(storage[value] for value in read)
        if after_loss:
            sent = leaves and (effect.moves in remote or effect.moves in away)
            late[effect.position] = [] if sent else [storage[value] for value in read]
        after_loss = after_loss or loss
    last = last_uses(graph, walked, held)
    ends: dict[int, list[int]] = {}
    for value, index in last.items():
        if value not in fixed or graph.values[value].kind == "input":
            ends.setdefault(index, []).append(value)
    return ValueLifetimes(
        {index: sorted(values) for index, values in ends.items()},
        fixed,
        [value for value in graph.inputs if value != NO_VALUE and value not in last],
        late,
    )


def differentiable_values(graph: Graph) -> set[int]:
    """The values of the forward that depend, through floating point numbers, on what requires a
    gradient."""
    found = {value.id for value in graph.values if value.requires_grad}
    for op in graph.ops:
        if op.phase == "forward" and found.intersection(op.inputs):
            found.update(
                value
                for value in op.outputs
                if value != NO_VALUE
                and graph.values[value].dtype.startswith(("float", "bf", "comp"))
            )
    return found


def gradient_join_ops(graph: Graph) -> set[int]:
    """The ops of the backward that read several values which depend on different gradients of
    outputs, of which some may not arrive."""
    loss = next(op for op in graph.ops if op.target == LOSS_TARGET)
    tangents = {value: frozenset([value]) for value in loss.outputs}
    sources = dict(tangents)
    found: set[int] = set()
    for op in graph.ops:
        arriving = [sources[value] for value in op.inputs if value in sources]
        if op.phase != "backward" or not arriving:
            continue
        for output, read in output_dependencies(op):
            behind = [sources[value] for value in read if value in sources]
            if behind:
                sources[output] = frozenset().union(*behind)
        if len(arriving) > 1 and any(each != arriving[0] for each in arriving):
            found.add(op.id)
    return found


def gradient_dependent_values(graph: Graph) -> set[int]:
    """The values that depend on gradients of outputs."""
    found: set[int] = set()
    for op in graph.ops:
        found |= {
            output
            for output, read in output_dependencies(op)
            if op.target == LOSS_TARGET or not found.isdisjoint(read)
        }
    return found - {NO_VALUE}


def output_dependencies(op: Op) -> Iterator[tuple[int, Sequence[int]]]:
    """Each output of an op with the inputs that it depends on: all, but for those of groups."""
    if not is_fused_group(op.target):
        yield from ((output, op.inputs) for output in op.outputs)
        return
    for output, places in zip(op.outputs, read_group_body(op).reads(), strict=True):
        yield output, [op.inputs[place] for place in places]


def version_checked_values(graph: Graph, read: set[int]) -> list[int]:
    """The fixed values and outputs in the storages `read` that nothing may change before: buffers
    that the step itself writes may change, constants never do."""
    written = {value for op in graph.ops for value in op.writes}
    fixed = [
        value.id
        for value in graph.values
        if value.kind in BASELINE_KINDS and value.kind != "constant" and value.id not in written
    ]
    outputs = graph.output_values()
    own = list(dict.fromkeys(fixed + outputs))
    return [value for value in own if graph.values[value].storage in read]
